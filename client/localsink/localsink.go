// SPDX-License-Identifier: Apache-2.0

// Package localsink is the seam between a client and a backend: a Sink receives the stream of one node as it comes.
//
// Few backends implement Sink themselves. Its sub-packages do, each for another taste: fullstate calls back with
// everything, changes with what changed, decoder with every single value; filterreset goes before any Sink and hides
// reconnections from it.
package localsink

import (
	"errors"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/flagset"
)

// ErrStop ends a client quietly, as if it had been told to stop. A sink that has to stop returns it from Send, and
// from WaitRequest from then on.
var ErrStop = errors.New("stop")

// Sink receives the ops of a stream. All methods are called from one goroutine, and none of them concurrently.
type Sink interface {
	// Setup is called once, before anything else.
	Setup()

	// WaitRequest is called before each change set is asked for, and may wait until the backend is ready for it. It
	// returns the name of the node whose view to ask for. An error ends the client: ErrStop quietly.
	WaitRequest() (nodeName string, err error)

	// Reset is called when a connection was made, the first one and each later one: a change set under way was broken
	// off, and the whole state follows. A Reset op on the stream means the same.
	Reset()

	// Send is called with each op. A Sync ends a change set: only then is the state whole. ErrStop ends the client;
	// another error is logged, and the stream goes on.
	localv1.OpSink
}

// Asker is a Sink that asks for more than every server sends to every client. It is an interface of its own so that a
// Sink need not know of it; a sink that goes before another one passes the question on with [Ask].
type Asker interface {
	// Ask is called after each WaitRequest that returned no error, and sets in the request what the sink wants beyond
	// the node's name. What it may set are options that an older server does not know: it ignores them.
	Ask(req *localv1.WatchReq)
}

// Ask has the sink, if it is an Asker, complete a request.
func Ask(sink any, req *localv1.WatchReq) {
	if asker, ok := sink.(Asker); ok {
		asker.Ask(req)
	}
}

// Config is what a sink has to know of the client's side. Sinks that embed it get WaitRequest.
type Config struct {
	// NodeName is the node whose view to ask for.
	NodeName string
}

// BindFlags binds --node-name. A set of flags that has it already, as from a client.Runner, is no hindrance: both get
// its value.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	flagset.NodeName(flags, &c.NodeName)
}

// WaitRequest returns the node's name at once. A nil Config names no node.
func (c *Config) WaitRequest() (nodeName string, err error) {
	if c == nil {
		return "", nil
	}
	return c.NodeName, nil
}
