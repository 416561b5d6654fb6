// SPDX-License-Identifier: Apache-2.0

// Package nftables writes the dataplane model into one nftables table, over netlink. The table is "inet OWNER":
//
//	prerouting, output  → services: maps that find a packet's frontend with one lookup each, at any number of services
//	ports4, ports6      address . protocol . port : goto the frontend's first chain
//	nodeports4/6, any4/6  the same for node ports and for all-ip frontends
//	front4-HASH         who may use it, and which pool: only for frontends that have such questions
//	masq4-HASH          marks what postrouting is to masquerade
//	pool4-HASH          chooses a target and redirects
//	affinity4-HASH, target4-HASH  a target's clients, and the way to it: only with affinity
//	postrouting         masquerades and gives pods their egress address
//
// A change of a service is one transaction that rewrites the service's own chains and the elements that differ.
// What a service becomes is computed by [render], which is pure, and forgotten when it is written: it can be computed again
// from the model. Nothing is read from the kernel to make a change.
package nftables

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	nft "github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Writer is a [dataplane.Writer]. It works in the network namespace of the thread that calls it first.
type Writer struct {
	opts   dataplane.Options
	layout layout
	// members counts the services that have each.
	members map[member]int
	seen    state
	// conn writes, list reads; opened when needed.
	conn    *netlink.Conn
	list    *nft.Conn
	written int
}

var _ dataplane.Writer = (*Writer)(nil)

// New makes a writer, which writes nothing yet.
func New(opts dataplane.Options) (*Writer, error) {
	opts = opts.Complete()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return &Writer{opts: opts, layout: layoutOf(opts), members: map[member]int{}}, nil
}

// Replace is [dataplane.Writer]'s.
func (w *Writer) Replace(_ context.Context, services []*dataplane.Service) error {
	counts := map[member]int{}
	err := w.transact(func(t *transaction) {
		t.removeTable()
		t.addLayout(w.layout)
		var d delta
		for _, s := range services {
			d.add(render(w.opts, s), Comment(s.Name))
		}
		d.write(t, w.layout, nil, counts)
	})
	if err == nil {
		w.members = counts
	}
	return err
}

// Apply is [dataplane.Writer]'s.
func (w *Writer) Apply(_ context.Context, changes []dataplane.Change) error {
	counts := map[member]int{}
	err := w.transact(func(t *transaction) {
		var d delta
		for _, c := range changes {
			var old, now program
			if c.Old != nil {
				old = render(w.opts, c.Old)
			}
			if c.New != nil {
				now = render(w.opts, c.New)
			}
			d.change(old, now, Comment(c.Name()))
		}
		d.write(t, w.layout, w.members, counts)
	})
	if err != nil {
		return err
	}
	maps.Copy(w.members, counts)
	for m, n := range counts {
		if n <= 0 {
			delete(w.members, m)
		}
	}
	return nil
}

// transact makes one transaction.
func (w *Writer) transact(fill func(*transaction)) error {
	t, err := begin(w.opts.Owner)
	if err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	before := generation(w.conn)
	fill(t)
	if err := t.commit(w.conn); err != nil {
		w.Close() // there may be more answers
		return err
	}
	w.written = t.elements
	w.committed(before)
	return nil
}

func (w *Writer) open() (err error) {
	if w.conn == nil {
		w.conn, err = dial()
	}
	if w.list == nil && err == nil {
		w.list, err = nft.New(nft.AsLasting())
	}
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

// Close closes the writer's sockets. They are opened again when needed.
func (w *Writer) Close() {
	if w.conn != nil {
		_ = w.conn.Close()
	}
	if w.list != nil {
		_ = w.list.CloseLasting()
	}
	w.conn, w.list = nil, nil
}

// Written is how many rules and elements the last transaction wrote or removed.
func (w *Writer) Written() int { return w.written }

// Cleanup is [dataplane.Writer]'s.
func (w *Writer) Cleanup(context.Context) error {
	w.members = map[member]int{}
	return w.transact(func(t *transaction) { t.removeTable() })
}

// delta is what a transaction adds and removes, in the order that the kernel wants: a chain is there before something
// goes to it, and goes when nothing goes to it any more.
type delta struct {
	addSets, delSets       []affinitySet
	newChains, delChains   []string
	flush                  []string
	rules                  []commented
	addElems, delElems     []element
	addMembers, delMembers []member
}

type commented struct {
	chain
	comment string
}

func (d *delta) add(p program, comment string) {
	d.addSets = append(d.addSets, p.sets...)
	for _, c := range p.chains {
		d.newChains = append(d.newChains, c.name)
		d.rules = append(d.rules, commented{c, comment})
	}
	d.addElems = append(d.addElems, p.elems...)
	d.addMembers = append(d.addMembers, p.members...)
}

// change adds what turns a program into another.
func (d *delta) change(old, now program, comment string) {
	var added program
	added.sets, d.delSets = differ(old.sets, now.sets, d.delSets)
	added.elems, d.delElems = differ(old.elems, now.elems, d.delElems)
	d.addMembers = append(d.addMembers, now.members...)
	d.delMembers = append(d.delMembers, old.members...)
	was := make(map[string][]rule, len(old.chains))
	for _, c := range old.chains {
		was[c.name] = c.rules
	}
	for _, c := range now.chains {
		rules, ok := was[c.name]
		delete(was, c.name)
		switch {
		case !ok:
			added.chains = append(added.chains, c)
		case !slices.EqualFunc(rules, c.rules, func(a, b rule) bool { return a.text() == b.text() }):
			d.flush = append(d.flush, c.name)
			d.rules = append(d.rules, commented{c, comment})
		}
	}
	for _, c := range old.chains { // in order, so that transactions are the same every time
		if _, gone := was[c.name]; gone {
			d.delChains = append(d.delChains, c.name)
		}
	}
	d.add(added, comment)
}

// differ tells what is in now only, and appends to del what is in old only.
func differ[T comparable](old, now, del []T) (add, removed []T) {
	in := make(map[T]bool, len(old))
	for _, v := range old {
		in[v] = true
	}
	for _, v := range now {
		if in[v] {
			delete(in, v)
		} else {
			add = append(add, v)
		}
	}
	for _, v := range old {
		if in[v] {
			del = append(del, v)
		}
	}
	return add, del
}

func (d *delta) write(t *transaction, l layout, held, counts map[member]int) {
	d.countMembers(held, counts)
	for _, s := range d.addSets {
		t.fail(t.conn.AddSet(t.affinitySet(s), nil))
	}
	for _, name := range d.newChains {
		t.addChain(name)
	}
	t.eachSet(l, d.delElems, t.conn.SetDeleteElements)
	for _, name := range append(d.flush, d.delChains...) {
		t.flushChain(name)
	}
	for _, c := range d.rules {
		t.addRules(c.chain, c.comment)
	}
	t.eachSet(l, d.addElems, t.conn.SetAddElements)
	for _, name := range d.delChains {
		t.delChain(name)
	}
	for _, s := range d.delSets {
		t.conn.DelSet(t.affinitySet(s))
	}
}

// countMembers turns members of services into elements of the sets that all share. It takes the counts there were, and fills
// in those that change.
func (d *delta) countMembers(held, counts map[member]int) {
	touch := func(all []member, by int) {
		for _, m := range all {
			if _, ok := counts[m]; !ok {
				counts[m] = held[m]
			}
			counts[m] += by
		}
	}
	touch(d.addMembers, 1)
	touch(d.delMembers, -1)
	order := func(a, b member) int { return cmp.Or(cmp.Compare(a.set, b.set), a.ip.Compare(b.ip)) }
	for _, m := range slices.SortedFunc(maps.Keys(counts), order) {
		e := element{set: m.set, key: dataplane.Key{IP: m.ip}, twice: strings.HasPrefix(m.set, "hairpin")}
		switch before, now := held[m] > 0, counts[m] > 0; {
		case now && !before:
			d.addElems = append(d.addElems, e)
		case !now && before:
			d.delElems = append(d.delElems, e)
		}
	}
}

// state is what was there after our last transaction.
type state struct {
	generation uint32
	use        uint32
}

// committed notes what is there. If somebody else made a transaction at the same time, the next Check looks closer.
func (w *Writer) committed(before uint32) {
	w.seen = state{}
	if now := generation(w.conn); before != 0 && now == before+1 {
		w.seen.generation = now
	}
	if table, err := w.list.ListTableOfFamily(w.opts.Owner, nft.TableFamilyINet); err == nil && table != nil {
		w.seen.use = table.Use
	}
}

// Check is [dataplane.Writer]'s. Nothing has to be looked at while nobody changed any nftables rule. After that, the table
// must have as many chains and sets as it had, and the rules that lead into it. A rule changed by hand inside a
// chain of a single service is not noticed.
func (w *Writer) Check(context.Context) (bool, error) {
	if err := w.open(); err != nil {
		return false, err
	}
	now := generation(w.conn)
	if now != 0 && now == w.seen.generation {
		return true, nil
	}
	tables, err := w.list.ListTablesOfFamily(nft.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("nftables: listing tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(o *nft.Table) bool { return o.Name == w.opts.Owner })
	if i < 0 || tables[i].Use != w.seen.use || tables[i].Flags != 0 {
		return false, nil
	}
	if ok, err := w.chainsIntact(w.list, tables[i]); !ok || err != nil {
		return false, err
	}
	w.seen.generation = now
	return true, nil
}

// chainsIntact compares the number of rules in the chains that all services share.
func (w *Writer) chainsIntact(c *nft.Conn, table *nft.Table) (bool, error) {
	want := map[string]int{}
	for _, c := range w.layout.chains {
		want[c.name] = len(c.rules)
	}
	for _, b := range w.layout.bases {
		want[b.name] = len(b.rules)
	}
	for name, n := range want {
		rules, err := c.GetRules(table, &nft.Chain{Name: name, Table: table})
		if err != nil || len(rules) != n {
			return false, err
		}
	}
	return true, nil
}
