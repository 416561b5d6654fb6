// SPDX-License-Identifier: Apache-2.0

// Package localtest is a small server of localv1 for the tests of what is on the client's side: it holds a state that
// a test sets, streams it over a real socket, and can be stopped, restarted, and told to misbehave.
package localtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
)

// Stream is the server's end of a stream.
type Stream = grpc.BidiStreamingServer[localv1.WatchReq, localv1.OpItem]

// Server is a server of localv1.
type Server struct {
	localv1.UnimplementedSetsServer

	t       testing.TB
	network string
	address string
	tls     *tls.Config

	mu       sync.Mutex
	grpc     *grpc.Server
	values   map[string][]byte // services under namespace/name, endpoints under namespace/name/key
	changed  chan struct{}     // closed at the next change
	scripts  []func(Stream) error
	requests []*localv1.WatchReq
	streams  int
	old      bool
}

// Option changes how a server is started.
type Option func(*Server)

// Unix makes the server listen on a unix socket.
func Unix(path string) Option { return func(s *Server) { s.network, s.address = "unix", path } }

// TLS makes the server demand TLS.
func TLS(cfg *tls.Config) Option { return func(s *Server) { s.tls = cfg } }

// Old makes the server one that knows nothing of batches.
func Old() Option { return func(s *Server) { s.old = true } }

// Start starts a server, on a free port of 127.0.0.1 unless told otherwise. It stops with the test.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := &Server{t: t, network: "tcp", address: "127.0.0.1:0", values: map[string][]byte{}, changed: make(chan struct{})}
	for _, o := range options {
		o(s)
	}
	s.Listen()
	t.Cleanup(s.Stop)
	return s
}

// Listen starts to serve, again after a Stop, at the same address.
func (s *Server) Listen() {
	s.t.Helper()
	listener, err := net.Listen(s.network, s.address)
	require.NoError(s.t, err)
	s.address = listener.Addr().String()
	var options []grpc.ServerOption
	if s.tls != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.tls)))
	}
	server := grpc.NewServer(options...)
	localv1.RegisterSetsServer(server, s)
	s.mu.Lock()
	s.grpc = server
	s.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// Stop breaks all connections and refuses new ones.
func (s *Server) Stop() {
	s.mu.Lock()
	server := s.grpc
	s.mu.Unlock()
	server.Stop()
}

// Target is what a client has to dial.
func (s *Server) Target() string {
	if s.network == "unix" {
		return "unix://" + s.address
	}
	return s.address
}

// Update changes the state in one step.
func (s *Server) Update(fn func(State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn(State{s.t, s.values})
	close(s.changed)
	s.changed = make(chan struct{})
}

// State is the state of a server, during an Update.
type State struct {
	t      testing.TB
	values map[string][]byte
}

// SetService adds or replaces a service.
func (s State) SetService(svc *localv1.Service) { s.values[svc.NamespacedName()] = marshal(s.t, svc) }

// SetEndpoint adds or replaces an endpoint of namespace/name.
func (s State) SetEndpoint(service, key string, ep *localv1.Endpoint) {
	s.values[service+"/"+key] = marshal(s.t, ep)
}

// Delete removes a service with its endpoints, or an endpoint.
func (s State) Delete(path string) {
	maps.DeleteFunc(s.values, func(p string, _ []byte) bool { return p == path || strings.HasPrefix(p, path+"/") })
}

func marshal(t testing.TB, m proto.Message) []byte {
	t.Helper()
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return raw
}

// Script makes the next streams misbehave, one for each function. A function that returns ends its stream; Serve goes
// on as usual.
func (s *Server) Script(scripts ...func(Stream) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.scripts = append(s.scripts, scripts...)
}

// Requests returns what clients have asked so far.
func (s *Server) Requests() []*localv1.WatchReq {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Streams is the number of streams opened so far.
func (s *Server) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// Watch implements localv1.SetsServer.
func (s *Server) Watch(stream Stream) error {
	s.mu.Lock()
	s.streams++
	script := s.Serve
	if len(s.scripts) > 0 {
		script, s.scripts = s.scripts[0], s.scripts[1:]
	}
	s.mu.Unlock()
	return script(stream)
}

// Request waits for a request.
func (s *Server) Request(stream Stream) (*localv1.WatchReq, error) {
	req, err := stream.Recv()
	if err == nil {
		s.mu.Lock()
		s.requests = append(s.requests, req)
		s.mu.Unlock()
	}
	return req, err
}

// Serve serves a stream as it should be.
func (s *Server) Serve(stream Stream) error {
	var sent map[string][]byte
	for first := true; ; first = false {
		req, err := s.Request(stream)
		if err != nil {
			return err
		}
		var ops []*localv1.OpItem
		if first {
			ops = append(ops, Reset())
		}
		for {
			values, changed := s.snapshot()
			difference := diff(sent, values)
			ops, sent = append(ops, difference...), values
			if first || len(difference) > 0 {
				break
			}
			if err := wait(stream.Context(), changed); err != nil {
				return err
			}
		}
		if err := s.send(stream, req, append(ops, Sync())); err != nil {
			return err
		}
	}
}

func (s *Server) snapshot() (map[string][]byte, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.values), s.changed
}

func wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send sends ops, in one batch when the client takes it.
func (s *Server) send(stream Stream, req *localv1.WatchReq, ops []*localv1.OpItem) error {
	if req.AcceptBatch && !s.old {
		return stream.Send(Batch(ops...))
	}
	for _, op := range ops {
		if err := stream.Send(op); err != nil {
			return err
		}
	}
	return nil
}

// diff returns the ops from one state to another, in the order of the protocol.
func diff(from, to map[string][]byte) (ops []*localv1.OpItem) {
	phase := func(service bool, values map[string][]byte, op func(path string)) {
		for _, path := range slices.Sorted(maps.Keys(values)) {
			if service == (strings.Count(path, "/") == 1) {
				op(path)
			}
		}
	}
	set := func(path string) {
		if was, ok := from[path]; !ok || !bytes.Equal(was, to[path]) {
			ops = append(ops, Set(path, to[path]))
		}
	}
	remove := func(path string) {
		if _, ok := to[path]; !ok {
			ops = append(ops, Delete(path))
		}
	}
	phase(true, to, set)
	phase(false, from, remove)
	phase(false, to, set)
	phase(true, from, remove)
	return ops
}
