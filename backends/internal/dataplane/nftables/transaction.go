// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"

	nft "github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
)

// maxElements that go into one message: its list is an attribute, which has at most 64 KiB.
const maxElements = 256

// transaction collects changes to a table, and makes them all or none. Its first error is kept.
type transaction struct {
	conn  *nft.Conn
	table *nft.Table
	err   error
	batch []netlink.Message
	// elements is how many elements and rules are written or removed.
	elements int
	// sets is how many sets were added. The library numbers them otherwise, with a counter that all its users in a
	// process share unguarded.
	sets uint32
}

func begin(owner string) (*transaction, error) {
	t := &transaction{table: &nft.Table{Name: owner, Family: nft.TableFamilyINet}}
	var err error
	if t.conn, err = encoder(func(batch []netlink.Message) { t.batch = batch }); err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return t, nil
}

func (t *transaction) commit(c *netlink.Conn) error {
	if t.err != nil {
		return t.err
	}
	if err := t.conn.Flush(); err != nil && t.batch == nil {
		return fmt.Errorf("nftables: encoding: %w", err)
	}
	if t.batch == nil {
		return nil
	}
	if err := send(c, t.batch); err != nil {
		return fmt.Errorf("nftables: table inet %s: %w", t.table.Name, err)
	}
	return nil
}

func (t *transaction) fail(err error) {
	if t.err == nil && err != nil {
		t.err = fmt.Errorf("nftables: table inet %s: %w", t.table.Name, err)
	}
}

// removeTable removes the table, which may not be there.
func (t *transaction) removeTable() {
	t.conn.AddTable(t.table)
	t.conn.DelTable(t.table)
}

// addLayout adds an empty table.
func (t *transaction) addLayout(l layout) {
	t.conn.AddTable(t.table)
	for i := range l.sets {
		s := &l.sets[i]
		set := t.set(s)
		set.ID = t.nextSet()
		t.fail(t.conn.AddSet(set, intervals(s.network)))
	}
	for _, c := range l.chains {
		t.addChain(c.name)
	}
	for _, c := range l.chains {
		t.addRules(c, "")
	}
	accept := nft.ChainPolicyAccept
	for _, b := range l.bases {
		t.conn.AddChain(&nft.Chain{Name: b.name, Table: t.table, Type: nft.ChainTypeNAT, Hooknum: b.hook,
			Priority: nft.ChainPriorityRef(nft.ChainPriority(b.priority)), Policy: &accept})
		t.addRules(chain{b.name, b.rules}, "")
	}
}

// set is a shared set as the library wants it.
func (t *transaction) set(s *shared) *nft.Set {
	out := &nft.Set{Table: t.table, Name: s.name, KeyType: s.key[0], Interval: s.ranges}
	if len(s.key) > 1 {
		out.KeyType, out.Concatenation = nft.MustConcatSetType(s.key...), true
	}
	if s.data.Name != "" {
		out.IsMap, out.DataType = true, s.data
	}
	return out
}

// nextSet is a number for a new set; any that is unique in the transaction does.
func (t *transaction) nextSet() uint32 {
	t.sets++
	return t.sets
}

func (t *transaction) addChain(name string) {
	t.conn.AddChain(&nft.Chain{Name: name, Table: t.table})
}

func (t *transaction) flushChain(name string) {
	t.conn.FlushChain(&nft.Chain{Name: name, Table: t.table})
}

func (t *transaction) delChain(name string) {
	t.conn.DelChain(&nft.Chain{Name: name, Table: t.table})
}

// addRules appends a chain's rules. The first has the comment.
func (t *transaction) addRules(c chain, comment string) {
	for i, r := range c.rules {
		out := &nft.Rule{Table: t.table, Chain: &nft.Chain{Name: c.name, Table: t.table}}
		for _, p := range r {
			out.Exprs = append(out.Exprs, t.exprs(p)...)
		}
		if i == 0 && comment != "" {
			out.UserData = userdata.AppendString(nil, userdata.TypeComment, comment)
		}
		t.conn.AddRule(out)
		t.elements++
	}
}

// exprs of a part. An anonymous set is written first, and the last lookup made to refer to it.
func (t *transaction) exprs(p part) []expr.Any {
	if p.set == nil {
		return p.exprs
	}
	set := p.set.set
	set.Table = t.table
	t.addAnonymous(&set, p.set.elems)
	out := slices.Clone(p.exprs)
	for i, e := range out {
		if l, ok := e.(*expr.Lookup); ok {
			bound := *l
			bound.SetName, bound.SetID = set.Name, set.ID
			out[i] = &bound
		}
	}
	return out
}

func (t *transaction) addAnonymous(set *nft.Set, elems []nft.SetElement) {
	t.elements += len(elems)
	set.ID, set.Name = t.nextSet(), "__set%d" // as nft names them; the kernel counts
	if set.IsMap {
		set.Name = "__map%d"
	}
	if len(elems) <= maxElements {
		t.fail(t.conn.AddSet(set, elems))
		return
	}
	t.fail(t.conn.AddSet(set, nil))
	// The kernel takes more elements until the transaction ends, but the library refuses.
	more := *set
	more.Anonymous = false
	t.changeElements(&more, elems, t.conn.SetAddElements)
}

func (t *transaction) changeElements(set *nft.Set, elems []nft.SetElement, change func(*nft.Set, []nft.SetElement) error) {
	for part := range slices.Chunk(elems, maxElements) {
		t.fail(change(set, part))
	}
}

func (t *transaction) affinitySet(s affinitySet) *nft.Set {
	return &nft.Set{Table: t.table, ID: t.nextSet(), Name: s.name, KeyType: s.f.addr, Dynamic: true, HasTimeout: true, Timeout: s.timeout, Size: maxClients}
}

// maxClients bounds what is remembered of a target's clients. Those beyond it have no affinity.
const maxClients = 65535

// elements groups elements by set, as the library wants them, and hands each group to change.
func (t *transaction) eachSet(l layout, elems []element, change func(*nft.Set, []nft.SetElement) error) {
	t.elements += len(elems)
	groups := map[string][]nft.SetElement{}
	for i := range elems {
		e := &elems[i]
		groups[e.set] = append(groups[e.set], e.encode())
	}
	for i := range l.sets {
		if group := groups[l.sets[i].name]; len(group) > 0 {
			t.changeElements(t.set(&l.sets[i]), group, change)
		}
	}
}

// encode the element.
func (e *element) encode() nft.SetElement {
	out := nft.SetElement{Comment: e.comment}
	if !e.key.IP.IsUnspecified() {
		out.Key = e.key.IP.AsSlice()
	}
	if e.key.Protocol != 0 {
		out.Key = append(out.Key, byte(e.key.Protocol), 0, 0, 0)
		out.Key = append(append(out.Key, binaryutil.BigEndian.PutUint16(e.key.Port)...), 0, 0)
	}
	switch {
	case e.verdict != "":
		out.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: e.verdict}
	case e.value.IsValid():
		out.Val = e.value.AsSlice()
	case e.twice:
		out.Key = append(out.Key, out.Key...)
	}
	return out
}
