// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/internal/netlab"
)

// onNode makes a writer work in a node's namespace, wherever it is called from.
type onNode struct {
	dataplane.Writer
	node *netlab.Host
}

func (w onNode) Replace(ctx context.Context, services []*dataplane.Service) error {
	return w.node.Do(func() error { return w.Writer.Replace(ctx, services) })
}

func (w onNode) Apply(ctx context.Context, changes []dataplane.Change) error {
	return w.node.Do(func() error { return w.Writer.Apply(ctx, changes) })
}

func (w onNode) Check(ctx context.Context) (intact bool, err error) {
	err = w.node.Do(func() error {
		intact, err = w.Writer.Check(ctx)
		return err
	})
	return intact, err
}

func (w onNode) Cleanup(ctx context.Context) error {
	return w.node.Do(func() error { return w.Writer.Cleanup(ctx) })
}

// flavour is a way to write rules.
type flavour struct {
	name string
	// open makes a writer; call it in the namespace.
	open func(t *testing.T, o dataplane.Options) dataplane.Writer
	// with, if not nil, changes the options of writers.
	with func(*dataplane.Options)
	// flushes are commands by which somebody takes rules of ours away, other are those that touch nothing of ours.
	flushes [][]string
	others  []string
	// foreign are commands that make somebody else's rules; dump are commands that show all rules.
	foreign, dump []string
	// dropByRule are commands that have the node forward nothing, where our rules can have an exception to that.
	dropByRule []string
}

// forEach runs a test on every flavour, each in a lab of its own.
func forEach(t *testing.T, podsOfN1 int, test func(t *testing.T, l *Lab, f flavour)) {
	for _, f := range flavours() {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			test(t, New(t, podsOfN1), f)
		})
	}
}

// writer makes a writer for n1.
func (f flavour) writer(t *testing.T, l *Lab) dataplane.Writer {
	t.Helper()
	return f.writerOf(t, l, "kpng-test")
}

func (f flavour) writerOf(t *testing.T, l *Lab, owner string) dataplane.Writer {
	t.Helper()
	n1, o := l.Host("n1"), options(owner)
	if f.with != nil {
		f.with(&o)
	}
	var w dataplane.Writer
	require.NoError(t, n1.Do(func() error {
		w = f.open(t, o)
		return nil
	}))
	return onNode{Writer: w, node: n1}
}

// on runs commands on n1 and returns what they print.
func on(t *testing.T, l *Lab, commands ...string) string {
	t.Helper()
	var all strings.Builder
	for _, line := range commands {
		words := strings.Fields(line)
		cmd := l.Host("n1").Command(t.Context(), words[0], words[1:]...)
		out, err := cmd.Output()
		require.NoError(t, err, "%s: %s", line, out)
		all.Write(out)
	}
	return all.String()
}
