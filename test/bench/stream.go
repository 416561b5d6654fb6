// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// window is HTTP/2's default for a stream and a connection, which gRPC's clients begin with too; like them, it is
	// given back when a quarter is used. So the server sees as many window updates as from a gRPC client.
	window = 65535
	give   = window / 4
	// streamID of the only stream of a connection.
	streamID = 1
	// prefixSize is the size of what comes before each message: a flag and its length.
	prefixSize = 5
)

// stream is a gRPC stream of localv1.Sets/Watch on a connection of its own, with as little of HTTP/2 as that takes and
// on one goroutine: a gRPC client costs as much as the server's side of a stream, and they share the machine.
type stream struct {
	conn    net.Conn
	out     *bufio.Writer
	framer  *http2.Framer
	request []byte // a WatchReq, with its prefix

	data   []byte // received and not yet a whole message
	used   int    // of data: what next has returned
	unseen uint32 // received and not yet given back to the window
}

// dial connects to a server's unix socket and opens the stream.
func dial(ctx context.Context, socket, node string, batch bool) (*stream, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	s := &stream{conn: conn, out: bufio.NewWriterSize(conn, 512), request: watchRequest(node, batch)}
	s.framer = http2.NewFramer(s.out, bufio.NewReaderSize(conn, 16<<10))
	s.framer.SetReuseFrames()
	if err := s.open(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func watchRequest(node string, batch bool) []byte {
	body := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), node)
	if batch {
		body = protowire.AppendVarint(protowire.AppendTag(body, 2, protowire.VarintType), 1)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
}

func (s *stream) open() error {
	if _, err := s.out.WriteString(http2.ClientPreface); err != nil {
		return err
	}
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/localv1.Sets/Watch"}, {":authority", "bench"},
		{"content-type", "application/grpc"}, {"user-agent", "grpc-go/1.85.0"}, {"te", "trailers"},
	} {
		if err := encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return err
		}
	}
	return errors.Join(
		s.framer.WriteSettings(),
		s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: streamID, BlockFragment: headers.Bytes(), EndHeaders: true}),
		s.out.Flush())
}

// ask asks for the next change set.
func (s *stream) ask() error {
	if err := s.framer.WriteData(streamID, false, s.request); err != nil {
		return err
	}
	return s.out.Flush()
}

// next returns the next message, which is good until the next call.
func (s *stream) next() ([]byte, error) {
	for {
		rest := s.data[s.used:]
		if len(rest) >= prefixSize {
			size := prefixSize + int(binary.BigEndian.Uint32(rest[1:]))
			if len(rest) >= size {
				s.used += size
				return rest[prefixSize:size], nil
			}
		}
		if s.used != 0 {
			s.data = s.data[:copy(s.data, rest)]
			s.used = 0
		}
		if err := s.read(); err != nil {
			return nil, err
		}
	}
}

// read reads one frame.
func (s *stream) read() error {
	frame, err := s.framer.ReadFrame()
	if err != nil {
		return err
	}
	switch f := frame.(type) {
	case *http2.DataFrame:
		s.data = append(s.data, f.Data()...)
		return s.giveBack(f.Length)
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		return errors.Join(s.framer.WriteSettingsAck(), s.out.Flush())
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		return errors.Join(s.framer.WritePing(true, f.Data), s.out.Flush())
	case *http2.HeadersFrame:
		return s.headers(f)
	case *http2.RSTStreamFrame:
		return fmt.Errorf("stream reset: %s", f.ErrCode)
	case *http2.GoAwayFrame:
		return fmt.Errorf("server goes away: %s", f.ErrCode)
	}
	return nil // WINDOW_UPDATE: requests are too small and too few to wait for it
}

func (s *stream) giveBack(size uint32) error {
	if s.unseen += size; s.unseen < give {
		return nil
	}
	err := errors.Join(s.framer.WriteWindowUpdate(0, s.unseen), s.framer.WriteWindowUpdate(streamID, s.unseen), s.out.Flush())
	s.unseen = 0
	return err
}

// headers takes the headers of the answer, or the trailers that end it.
func (s *stream) headers(f *http2.HeadersFrame) error {
	if !f.StreamEnded() {
		return nil
	}
	var text []string
	fields, err := hpack.NewDecoder(4096, nil).DecodeFull(f.HeaderBlockFragment())
	for _, field := range fields {
		text = append(text, field.Name+"="+field.Value)
	}
	return errors.Join(fmt.Errorf("the server ended the stream: %s", strings.Join(text, " ")), err)
}

func (s *stream) close() { _ = s.conn.Close() }
