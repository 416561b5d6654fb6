// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"

	"sigs.k8s.io/kpng/api/localv1"
)

// frameSize is how much a frame gathers before it is sent. It is far below the 4 MiB that clients accept by default,
// large enough that the cost of a message vanishes in it, and what fits into one frame of HTTP/2; larger ones cost only
// memory, when a thousand watchers are sent everything at once. The first frame of a change set is smaller: most sets
// fit into it.
const (
	frameSize      = 16 << 10
	firstFrameSize = 4 << 10
)

// frame is an OpItem, encoded. codec passes it on as it is.
type frame struct{ bytes mem.BufferSlice }

// codec is gRPC's codec for protobuf, except that a frame is not encoded again.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(frame); ok {
		return f.bytes, nil
	}
	return c.CodecV2.Marshal(v)
}

// messageSender is the part of a gRPC stream that sends.
type messageSender interface{ SendMsg(m any) error }

// frameWriter writes ops to a stream: gathered in OpItem.Batch messages for peers that accept them, else one by one.
type frameWriter struct {
	stream  messageSender
	batch   bool
	pool    mem.BufferPool
	buf     *[]byte // the frame being filled; nil when there is none
	at      int64   // OpItem.TriggeredAt of what comes
	count   *counter
	failure error
}

// counter counts what was sent.
type counter struct{ ops, bytes int }

func newFrameWriter(stream messageSender, batch bool) *frameWriter {
	return &frameWriter{stream: stream, batch: batch, pool: mem.DefaultBufferPool(), count: &counter{}}
}

func (w *frameWriter) reset() { write(w, emptyOp(opReset)) }

func (w *frameWriter) set(set localv1.Set, p path, value, suffix string) {
	writeValue(w, newSetOp(set, p, value, suffix))
}

func (w *frameWriter) remove(set localv1.Set, p path) { writeValue(w, deleteOp{set, p}) }

func (w *frameWriter) triggered(at int64) { w.at = at }

func writeValue[Op encodable](w *frameWriter, op Op) {
	if w.at != 0 {
		write(w, triggeredOp[Op]{op, w.at})
		return
	}
	write(w, op)
}

func (w *frameWriter) end() error {
	write(w, emptyOp(opSync))
	w.flush()
	return w.failure
}

// write is generic so that an op need not escape to the heap.
func write[Op encodable](w *frameWriter, op Op) {
	if w.failure != nil {
		return
	}
	w.count.ops++
	size := op.size()
	if !w.batch {
		buf := w.pool.Get(size)
		*buf = op.append((*buf)[:0])
		w.send(mem.BufferSlice{mem.NewBuffer(buf, w.pool)})
		return
	}
	if w.buf != nil && len(*w.buf)+fieldSize(size) > cap(*w.buf) {
		w.flush()
	}
	if w.buf == nil {
		gather := frameSize
		if w.count.bytes == 0 {
			gather = firstFrameSize
		}
		w.buf = w.pool.Get(max(gather, fieldSize(size)))
		*w.buf = (*w.buf)[:0]
	}
	*w.buf = op.append(appendHeader(*w.buf, batchOps, size))
}

// flush sends the frame being filled.
func (w *frameWriter) flush() {
	if w.buf == nil {
		return
	}
	body := mem.NewBuffer(w.buf, w.pool)
	header := appendHeader(make([]byte, 0, tagSize+protowire.SizeVarint(uint64(body.Len()))), opBatch, body.Len())
	w.buf = nil
	w.send(mem.BufferSlice{mem.SliceBuffer(header), body})
}

func (w *frameWriter) send(bytes mem.BufferSlice) {
	if w.failure != nil {
		bytes.Free()
		return
	}
	w.count.bytes += bytes.Len()
	w.failure = w.stream.SendMsg(frame{bytes})
}
