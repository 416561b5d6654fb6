// SPDX-License-Identifier: Apache-2.0

// Package client is what a backend imports. The whole of a backend may be
//
//	client.Run(func(items []*client.ServiceEndpoints) { ... })
//
// which parses flags, connects to kpng, and calls the function with everything at every change. RunChanges calls it
// with what changed; RunCh with a channel; a Runner is the same for programs that bring their own commands, and a
// LocalClient with a localsink.Sink for those that bring everything of their own.
//
// The way of a change through a backend: LocalClient asks for a change set and hands its ops to a Sink (package
// localsink), one of whose implementations makes calls of them. While kpng is away the backend keeps what it has;
// when kpng is back, what was missed comes as a difference.
package client

import (
	"context"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/flagset"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/client/tlsflags"
)

// Defaults of a LocalClient.
const (
	DefaultTarget     = "127.0.0.1:12090"
	DefaultErrorDelay = time.Second
	DefaultMaxMsgSize = 4 << 20
)

// ServiceEndpoints is a service and those of its endpoints that the node may use.
type ServiceEndpoints = fullstate.ServiceEndpoints

// FlagSet is what flags are bound to: both [flag.FlagSet] and [pflag.FlagSet] are one.
type FlagSet = tlsflags.FlagSet

// LocalClient is a client of kpng's localv1 API: it hands what it receives to its Sink.
//
// A literal with a Sink is complete. Its life is a loop of Next calls, from one goroutine, until Next says that it was
// canceled; Cancel may be called from anywhere.
type LocalClient struct {
	// Target is host:port, unix:///path, or any other target that gRPC knows (dns:///name:port).
	Target string

	// TLS is the client's side of TLS; nil, or without any file: plain text.
	TLS *tlsflags.Flags

	// ErrorDelay is how long to wait after a first failure. The wait grows to some 10 seconds while failures go on.
	ErrorDelay time.Duration

	// MaxMsgSize is the size of the largest message to receive, in bytes.
	MaxMsgSize int

	// Sink receives the ops.
	Sink localsink.Sink

	mu     sync.Mutex
	ctx    context.Context //nolint:containedctx // the promised API has Cancel and Context
	cancel context.CancelFunc

	// What follows belongs to the goroutine that calls Next.

	conn      *grpc.ClientConn // kept when a stream ends: gRPC learns with it how often the server lets it ping
	unwatch   func() bool      // stops closing conn when ctx ends
	stream    grpc.BidiStreamingClient[localv1.WatchReq, localv1.OpItem]
	endStream context.CancelFunc
	backoff   backoff
	lastErr   error   // of the last failed attempt since the last whole change set
	status    *status // told of success and failure; may be nil
	log       ops.Log
}

// New returns a client with its flags bound.
func New(flags FlagSet) *LocalClient {
	c := &LocalClient{}
	c.DefaultFlags(flags)
	return c
}

// DefaultFlags binds --api, --tls-key, --tls-crt, --tls-ca, --error-delay and --max-msg-size.
func (c *LocalClient) DefaultFlags(flags FlagSet) {
	if c.TLS == nil {
		c.TLS = &tlsflags.Flags{}
	}
	flagset.String(flags, &c.Target, "api", DefaultTarget, "`address` of kpng: host:port or unix:///path")
	flagset.Duration(flags, &c.ErrorDelay, "error-delay", DefaultErrorDelay, "how long to wait after a first failure; grows while failures go on")
	flagset.Int(flags, &c.MaxMsgSize, "max-msg-size", DefaultMaxMsgSize, "size of the largest message to accept, in `bytes`")
	c.TLS.Bind(flags, "")
}

// Cancel ends the client: Next returns, now and from now on.
func (c *LocalClient) Cancel() {
	c.Context()
	c.cancel()
}

// CancelOnSignals cancels on SIGINT and SIGTERM.
func (c *LocalClient) CancelOnSignals() {
	c.CancelOn(os.Interrupt, syscall.SIGTERM)
}

// CancelOn cancels on the first of the given signals. After it, signals do again what they do by default, so that a
// second one ends a program that does not end by itself.
func (c *LocalClient) CancelOn(signals ...os.Signal) {
	ctx := c.Context()
	received := make(chan os.Signal, 1)
	signal.Notify(received, signals...)
	go func() {
		defer signal.Stop(received)
		select {
		case s := <-received:
			klog.InfoS("Stopping", "signal", s.String())
			c.Cancel()
		case <-ctx.Done():
		}
	}()
}

// Context ends when the client is canceled.
func (c *LocalClient) Context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx == nil {
		c.ctx, c.cancel = context.WithCancel(context.Background())
	}
	return c.ctx
}

// target is Target as gRPC has it. The form in which a server's --listen is given is understood too.
func (c *LocalClient) target() string {
	if c.Target == "" {
		return DefaultTarget
	}
	return strings.TrimPrefix(c.Target, "tcp://")
}

func (c *LocalClient) errorDelay() time.Duration {
	if c.ErrorDelay <= 0 {
		return DefaultErrorDelay
	}
	return c.ErrorDelay
}

func (c *LocalClient) maxMsgSize() int {
	if c.MaxMsgSize <= 0 {
		return DefaultMaxMsgSize
	}
	return c.MaxMsgSize
}
