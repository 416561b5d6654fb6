// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// serveOn runs a server on a unix socket until the test ends, and returns its gRPC target.
func serveOn(t testing.TB, st *store.Store, change ...func(*Config)) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	config := &Config{Listen: []string{"unix://" + socket}, Local: true, Global: true, MaxWatchers: 100}
	for _, c := range change {
		c(config)
	}
	run(t, config, st)
	return "unix://" + socket
}

// run runs a server until the test ends.
func run(t testing.TB, config *Config, st *store.Store) *Server {
	t.Helper()
	server, err := New(config, st)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	for _, listen := range config.Listen {
		a, err := parseAddress(listen)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			conn, err := net.Dial(a.network, a.at)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		}, 10*time.Second, time.Millisecond)
	}
	return server
}

func dial(t testing.TB, target string, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	if len(options) == 0 {
		options = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient(target, options...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// watch is the simplest client there can be. It keeps what it was told, as text, and fails on anything that the
// protocol forbids.
type watch struct {
	request func() error
	recv    func() (*localv1.OpItem, error)
	cancel  func()

	state    map[string]proto.Message // by set and path
	ops      []string                 // of the last change set
	messages int                      // of the last change set
	sets     int
}

func watchLocal(t testing.TB, target, node string, batch bool) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := localv1.NewSetsClient(dial(t, target)).Watch(ctx)
	require.NoError(t, err)
	return &watch{
		cancel:  cancel,
		request: func() error { return stream.Send(&localv1.WatchReq{NodeName: node, AcceptBatch: batch}) },
		recv:    stream.Recv,
		state:   map[string]proto.Message{},
	}
}

func watchGlobal(t testing.TB, target string, batch bool, options ...grpc.DialOption) *watch {
	t.Helper()
	stream, err := globalv1.NewSetsClient(dial(t, target, options...)).Watch(t.Context())
	if err != nil {
		return &watch{request: func() error { return err }}
	}
	return &watch{
		request: func() error { return stream.Send(&globalv1.GlobalWatchReq{AcceptBatch: batch}) },
		recv:    stream.Recv,
		state:   map[string]proto.Message{},
	}
}

// next asks for a change set and takes it in.
func (w *watch) next() error {
	if err := w.request(); err != nil && !errors.Is(err, io.EOF) {
		return err // for EOF, the stream's end, recv has the reason
	}
	w.ops, w.messages = nil, 0
	for {
		op, err := w.recv()
		if err != nil {
			return err
		}
		w.messages++
		ops := []*localv1.OpItem{op}
		if batch := op.GetBatch(); batch != nil {
			ops = batch.GetOps()
		}
		for i, op := range ops {
			end, err := w.take(op)
			if err != nil {
				return err
			}
			if end {
				if i != len(ops)-1 {
					return fmt.Errorf("%d ops after Sync", len(ops)-1-i)
				}
				w.sets++
				return nil
			}
		}
	}
}

func (w *watch) take(op *localv1.OpItem) (end bool, err error) {
	switch kind := op.GetOp().(type) {
	case *localv1.OpItem_Sync:
		return true, nil
	case *localv1.OpItem_Reset_:
		if w.sets != 0 || len(w.ops) != 0 {
			return false, fmt.Errorf("Reset that is not the first op of the stream")
		}
		w.ops = append(w.ops, "reset")
	case *localv1.OpItem_Set:
		err = w.set(kind.Set)
	case *localv1.OpItem_Delete:
		err = w.remove(kind.Delete)
	default:
		return false, fmt.Errorf("unexpected op %v", op)
	}
	if at := op.GetTriggeredAt(); at != 0 {
		w.ops[len(w.ops)-1] += fmt.Sprint(" @", at)
	}
	return false, err
}

func newValue(set localv1.Set) proto.Message {
	return map[localv1.Set]func() proto.Message{
		localv1.Set_ServicesSet:         func() proto.Message { return &localv1.Service{} },
		localv1.Set_EndpointsSet:        func() proto.Message { return &localv1.Endpoint{} },
		localv1.Set_GlobalServiceInfos:  func() proto.Message { return &globalv1.ServiceInfo{} },
		localv1.Set_GlobalEndpointInfos: func() proto.Message { return &globalv1.EndpointInfo{} },
		localv1.Set_GlobalNodeInfos:     func() proto.Message { return &globalv1.NodeInfo{} },
	}[set]()
}

func (w *watch) set(v *localv1.Value) error {
	value := newValue(v.GetRef().GetSet())
	if err := proto.Unmarshal(v.GetBytes(), value); err != nil {
		return err
	}
	place := v.GetRef().GetSet().String() + " " + v.GetRef().GetPath()
	w.ops = append(w.ops, "set "+place)
	if proto.Equal(w.state[place], value) && w.state[place] != nil {
		return fmt.Errorf("%s is set to what it was", place)
	}
	w.state[place] = value
	return w.noOrphan(v.GetRef())
}

// noOrphan: at no point is there an endpoint without its service.
func (w *watch) noOrphan(ref *localv1.Ref) error {
	service, ok := owner(ref)
	if ok && w.state[service] == nil {
		return fmt.Errorf("endpoint %s has no service", ref.GetPath())
	}
	return nil
}

func owner(ref *localv1.Ref) (service string, ok bool) {
	parts := strings.Split(ref.GetPath(), "/")
	if len(parts) != 3 {
		return "", false
	}
	set := localv1.Set_ServicesSet
	if ref.GetSet() == localv1.Set_GlobalEndpointInfos {
		set = localv1.Set_GlobalServiceInfos
	}
	return set.String() + " " + parts[0] + "/" + parts[1], true
}

func (w *watch) remove(ref *localv1.Ref) error {
	place := ref.GetSet().String() + " " + ref.GetPath()
	w.ops = append(w.ops, "delete "+place)
	if w.state[place] == nil {
		return fmt.Errorf("%s is deleted but was not there", place)
	}
	delete(w.state, place)
	for other := range w.state {
		if strings.HasPrefix(other, localv1.Set_EndpointsSet.String()) && strings.HasPrefix(other, strings.Replace(place, "Services", "Endpoints", 1)+"/") {
			return fmt.Errorf("%s is deleted before %s", place, other)
		}
	}
	return nil
}

// The objects of the tests.

func service(name string, change ...func(*globalv1.ServiceInfo)) *globalv1.ServiceInfo {
	info := &globalv1.ServiceInfo{Service: &localv1.Service{Namespace: "ns", Name: name}}
	for _, c := range change {
		c(info)
	}
	return info
}

// slice is an EndpointSlice; an endpoint is written IP@NODE, or IP@NODE! when it is not ready.
func slice(svc, name string, endpoints ...string) *store.Slice {
	out := &store.Slice{Namespace: "ns", Name: name, Service: svc}
	for _, text := range endpoints {
		ip, node, _ := strings.Cut(text, "@")
		node, notReady := strings.CutSuffix(node, "!")
		out.Endpoints = append(out.Endpoints, &globalv1.EndpointInfo{
			Namespace: "ns", SourceName: name, ServiceName: svc,
			Endpoint:   &localv1.Endpoint{IPs: localv1.NewIPSet(ip)},
			Conditions: &globalv1.EndpointConditions{Ready: !notReady},
			Topology:   &globalv1.TopologyInfo{Node: node},
		})
	}
	return out
}

func node(name, zone string) *globalv1.Node {
	return &globalv1.Node{Name: name, Topology: &globalv1.TopologyInfo{Node: name, Zone: zone}}
}

// short cuts the hashes off the keys of endpoints.
func short(ops []string) []string {
	out := make([]string, len(ops))
	for i, op := range ops {
		if strings.Count(op, "/") == 2 {
			place, at, timed := strings.Cut(op, " @")
			op = place[:strings.LastIndex(place, "-")]
			if timed {
				op += " @" + at
			}
		}
		out[i] = op
	}
	return out
}
