// SPDX-License-Identifier: Apache-2.0

// Package nftables writes the dataplane model into one nftables table, over netlink. The table is "inet OWNER":
//
//	prerouting, output   → services: maps that find a packet's frontend with one lookup each, at any number of services
//	ports4, ports6       address . protocol . port : goto the frontend's first chain
//	nodeports4/6, any4/6 the same for node ports and for all-ip frontends
//	targets4, targets6   address . protocol . port . number : the target with that number, and its port
//	nodetargets4/6, anytargets4/6 and local... the same for the other frontends, and for pools of the policy Local
//	unmark, postrouting  masquerade and give pods their egress address; local4/6 are the targets on this node
//
// A service has no chain and no set of its own, only elements: the kernel searches the list of all sets whenever one is
// made or named. The chains that the elements lead to are few; each is made when it is first needed, and the first two kinds
// then stay until the next Replace:
//
//	targets4-tcp-12      draws a number and redirects to that target: for all frontends with 9 to 12 targets
//	non-local-targets4-tcp-12, remote-..., always-...  mark what postrouting is to masquerade, before that
//	A--B                 leads what comes from this node and the cluster to A, what comes from outside to B
//
// Chains of a single service are for what only it can know:
//
//	front4-HASH          who may use it
//	pool4-HASH, local4-HASH  chooses a target with affinity; origin4-HASH and masq4-HASH before that
//	affinity4-HASH, target4-HASH  a target's clients, and the way to it
//
// A change of a service is one transaction that writes the elements that differ, and chains of the service that do; before
// it, if there are new chains, one that adds them where nothing leads to them yet.
// What a service becomes is computed by [renderer], which is pure, and forgotten when it is written: it can be computed again
// from the model. Nothing is read from the kernel to make a change. A Replace keeps the affinity sets that are wanted, with
// the clients in them, and has everything else anew.
//
// A drop in another table is final in nftables. Where that is the policy of FORWARD in iptables, of either flavor, there is a
// rule of ours as well: see [iptables.Forward].
package nftables

import (
	"context"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
)

// Writer is a [dataplane.Writer]. It works in the network namespace of the thread that calls it first.
type Writer struct {
	opts    dataplane.Options
	layout  *layout
	uses    uses
	state   state
	forward *iptables.Forward
	conn    *netlink.Conn // opened when needed
	written int
}

var _ dataplane.Writer = (*Writer)(nil)

// New makes a writer, which writes nothing yet.
func New(opts dataplane.Options) (*Writer, error) {
	opts = opts.Complete()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	w := &Writer{opts: opts, layout: layoutOf(opts), forward: iptables.NewForward(opts)}
	w.forget()
	return w, nil
}

// forget is what the writer knows of an empty table.
func (w *Writer) forget() {
	w.uses = newUses()
	w.state = state{size: w.layout.size(), elements: map[string]int{}}
	for _, s := range w.layout.sets {
		if !s.ranges {
			w.state.elements[s.name] = 0
		}
	}
}

// Replace is [dataplane.Writer]'s.
func (w *Writer) Replace(ctx context.Context, services []*dataplane.Service) error {
	w.written = 0
	add := elementLists{}
	d := newDelta(w.opts, func(e *element) { add.add(e, false) }, nil)
	for _, s := range services {
		d.service(nil, s)
	}
	d.finish(newUses())
	err := w.transact(func(t *transaction) error {
		kept, err := w.clear(t, d.addSets)
		if err != nil {
			return err
		}
		t.addTable()
		t.addLayout(w.layout)
		d.writeNew(t, kept)
		d.write(t, w.layout, add, nil)
		return nil
	})
	if err != nil {
		return err
	}
	w.forget()
	w.uses.add(d.uses)
	w.committed(d, add, nil)
	w.passForward(ctx)
	return nil
}

// Apply is [dataplane.Writer]'s. New chains are written before, on their own, where they do no harm: a packet that is just
// being looked at goes by the rules of before the transaction, but by the elements of after it, and a chain that is new is
// empty to it.
func (w *Writer) Apply(_ context.Context, changes []dataplane.Change) error {
	w.written = 0
	add, del := elementLists{}, elementLists{}
	d := newDelta(w.opts, func(e *element) { add.add(e, false) }, func(e *element) { del.add(e, true) })
	for _, c := range changes {
		d.service(c.Old, c.New)
	}
	d.finish(w.uses)
	for _, fill := range []func(*transaction){
		func(t *transaction) { d.writeNew(t, nil) },
		func(t *transaction) { d.write(t, w.layout, add, del) },
	} {
		err := w.transact(func(t *transaction) error {
			fill(t)
			return nil
		})
		if err != nil {
			return err
		}
	}
	w.uses.add(d.uses)
	w.committed(d, add, del)
	return nil
}

// Cleanup is [dataplane.Writer]'s.
func (w *Writer) Cleanup(ctx context.Context) error {
	err := w.transact(func(t *transaction) error {
		t.removeTable()
		return nil
	})
	if err == nil {
		w.forget()
	}
	if other := w.forward.Remove(ctx); other != nil {
		err = errors.Join(err, fmt.Errorf("nftables: cleanup: %w", other))
	}
	return err
}

// transact makes one transaction, if there is anything to do.
func (w *Writer) transact(fill func(*transaction) error) error {
	if err := w.open(); err != nil {
		return err
	}
	t := begin(w.opts.Owner)
	if err := fill(t); err != nil {
		return fmt.Errorf("nftables: table inet %s: %w", w.opts.Owner, err)
	}
	batch, err := t.messages()
	if err != nil {
		return fmt.Errorf("nftables: table inet %s: %w", w.opts.Owner, err)
	}
	if batch == nil {
		return nil
	}
	before := generation(w.conn)
	if err := send(w.conn, batch); err != nil {
		w.Close() // there may be more answers
		return fmt.Errorf("nftables: table inet %s: %w", w.opts.Owner, err)
	}
	w.written += t.elements
	w.advance(before)
	return nil
}

func (w *Writer) open() (err error) {
	if w.conn == nil {
		if w.conn, err = dial(); err != nil {
			return fmt.Errorf("nftables: %w", err)
		}
	}
	return nil
}

// Close closes the writer's socket. It is opened again when needed.
func (w *Writer) Close() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
	w.conn = nil
}

// Written is how many rules and elements the last Replace or Apply wrote or removed.
func (w *Writer) Written() int { return w.written }
