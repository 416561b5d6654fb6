// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// transaction collects changes to a table, and makes them all or none. Its first error is kept.
type transaction struct {
	batch
	table string
	err   error
	// elements is how many elements and rules are written or removed.
	elements int
	// sets is how many sets were added, which gives each its number in the transaction.
	sets uint32
}

func begin(owner string) *transaction {
	t := &transaction{table: owner}
	t.edge(unix.NFNL_MSG_BATCH_BEGIN)
	return t
}

func (t *transaction) fail(err error) { t.err = errors.Join(t.err, err) }

func (t *transaction) addTable() {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	t.text(unix.NFTA_TABLE_NAME, t.table)
	t.number(unix.NFTA_TABLE_FLAGS, 0)
}

// removeTable removes the table, which may not be there.
func (t *transaction) removeTable() {
	t.addTable()
	t.message(unix.NFT_MSG_DELTABLE, 0)
	t.text(unix.NFTA_TABLE_NAME, t.table)
}

// addLayout adds what does not depend on services.
func (t *transaction) addLayout(l *layout) {
	for i := range l.sets {
		t.addShared(&l.sets[i])
	}
	for _, c := range l.chains {
		t.addChain(c.name)
	}
	for _, c := range l.chains {
		t.addRules(c, "")
	}
	for _, b := range l.bases {
		t.addBase(b)
		t.addRules(chain{b.name, b.rules}, "")
	}
}

func (t *transaction) addChain(name string) {
	t.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	t.text(unix.NFTA_CHAIN_TABLE, t.table)
	t.text(unix.NFTA_CHAIN_NAME, name)
}

func (t *transaction) addBase(b base) {
	t.addChain(b.name)
	hook := t.nest(unix.NFTA_CHAIN_HOOK)
	t.number(unix.NFTA_HOOK_HOOKNUM, b.hook)
	t.number(unix.NFTA_HOOK_PRIORITY, uint32(b.priority))
	t.close(hook)
	t.number(unix.NFTA_CHAIN_POLICY, policyAccept)
	t.text(unix.NFTA_CHAIN_TYPE, b.typ)
}

func (t *transaction) flushChain(name string) {
	t.message(unix.NFT_MSG_DELRULE, 0)
	t.text(unix.NFTA_RULE_TABLE, t.table)
	t.text(unix.NFTA_RULE_CHAIN, name)
}

func (t *transaction) delChain(name string) {
	t.message(unix.NFT_MSG_DELCHAIN, 0)
	t.text(unix.NFTA_CHAIN_TABLE, t.table)
	t.text(unix.NFTA_CHAIN_NAME, name)
}

// addRules appends a chain's rules. The first has the comment.
func (t *transaction) addRules(c chain, comment string) {
	for i, r := range c.rules {
		if i > 0 {
			comment = ""
		}
		t.addRule(c.name, r, comment)
	}
}

func (t *transaction) addRule(chain string, r rule, comment string) {
	t.elements++
	ids := make([]uint32, len(r))
	for i, p := range r { // what a rule needs comes first
		if p.set != nil {
			ids[i] = t.addAnonymous(p.set)
		}
		if p.comment != "" {
			comment = p.comment
		}
	}
	t.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	t.text(unix.NFTA_RULE_TABLE, t.table)
	t.text(unix.NFTA_RULE_CHAIN, chain)
	list := t.nest(unix.NFTA_RULE_EXPRESSIONS)
	for i, p := range r {
		for _, e := range p.exprs {
			t.addExpr(p.bound(e, ids[i]))
		}
	}
	t.close(list)
	if comment != "" {
		t.add(unix.NFTA_RULE_USERDATA, append([]byte{0, byte(len(comment) + 1)}, comment+"\x00"...)...)
	}
}

// bound is an expression that refers to the part's set, if it is the one that looks it up.
func (p *part) bound(e expr.Any, id uint32) expr.Any {
	l, ok := e.(*expr.Lookup)
	if !ok || p.set == nil {
		return e
	}
	bound := *l
	bound.SetName, bound.SetID = p.set.name(), id
	return &bound
}

func (t *transaction) addExpr(e expr.Any) {
	b, err := expr.Marshal(unix.NFPROTO_INET, e)
	t.fail(err)
	item := t.nest(unix.NFTA_LIST_ELEM)
	t.attributes = append(t.attributes, b...)
	t.close(item)
}

// addSet begins a set; its other attributes may follow.
func (t *transaction) addSet(name string, flags uint32, key []field) uint32 {
	t.sets++
	t.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	t.text(unix.NFTA_SET_TABLE, t.table)
	t.text(unix.NFTA_SET_NAME, name)
	t.number(unix.NFTA_SET_FLAGS, flags)
	t.number(unix.NFTA_SET_KEY_TYPE, typeNumber(key))
	t.number(unix.NFTA_SET_KEY_LEN, width(key))
	t.number(unix.NFTA_SET_ID, t.sets)
	return t.sets
}

func (t *transaction) verdicts() {
	t.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	t.number(unix.NFTA_SET_DATA_LEN, 0)
}

func (t *transaction) addShared(s *shared) {
	flags := uint32(0)
	if s.ranges {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.verdict || s.data != nil {
		flags |= unix.NFT_SET_MAP
	}
	id := t.addSet(s.name, flags, s.key)
	switch {
	case s.verdict:
		t.verdicts()
	case s.data != nil:
		t.number(unix.NFTA_SET_DATA_TYPE, typeNumber(s.data))
		t.number(unix.NFTA_SET_DATA_LEN, width(s.data))
	}
	if u := s.userData(); u != nil {
		t.add(unix.NFTA_SET_USERDATA, u...)
	}
	var list elementList
	encodeIntervals(&list, s.network)
	t.changeElements(unix.NFT_MSG_NEWSETELEM, s.name, id, &list)
}

func (t *transaction) addAffinitySet(s affinitySet) {
	t.addSet(s.name, unix.NFT_SET_EVAL|unix.NFT_SET_TIMEOUT, []field{s.f.addr})
	t.long(unix.NFTA_SET_TIMEOUT, uint64(s.timeout.Milliseconds()))
	description := t.nest(unix.NFTA_SET_DESC)
	t.number(unix.NFTA_SET_DESC_SIZE, maxClients)
	t.close(description)
}

func (t *transaction) addAnonymous(s *anonymous) uint32 {
	flags, order, list := uint32(unix.NFT_SET_ANONYMOUS|unix.NFT_SET_CONSTANT), uint32(orderNetwork), elementList{}
	if s.verdicts != nil {
		flags, order = flags|unix.NFT_SET_MAP, orderHost
		for i, c := range s.verdicts {
			e := element{index: i, indexed: true, verdict: c}
			e.encode(list.next(), false)
		}
	} else {
		flags |= unix.NFT_SET_INTERVAL
		encodeIntervals(&list, s.network)
	}
	id := t.addSet(s.name(), flags, []field{s.key})
	if s.verdicts != nil {
		t.verdicts()
	}
	t.add(unix.NFTA_SET_USERDATA, userNumber(userKeyOrder, order)...)
	t.changeElements(unix.NFT_MSG_NEWSETELEM, s.name(), id, &list)
	return id
}

func (t *transaction) delSet(name string) {
	t.message(unix.NFT_MSG_DELSET, 0)
	t.text(unix.NFTA_SET_TABLE, t.table)
	t.text(unix.NFTA_SET_NAME, name)
}

// changeElements adds or deletes elements. A set of this transaction that has no name of its own is found by its number.
func (t *transaction) changeElements(typ uint16, set string, id uint32, l *elementList) {
	t.elements += l.count
	begin := 0
	for _, end := range append(l.cuts, len(l.bytes)) {
		if begin == end {
			continue
		}
		flags := uint16(0)
		if typ == unix.NFT_MSG_NEWSETELEM {
			flags = unix.NLM_F_CREATE
		}
		t.message(typ, flags)
		t.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.table)
		t.text(unix.NFTA_SET_ELEM_LIST_SET, set)
		if id != 0 {
			t.number(unix.NFTA_SET_ELEM_LIST_SET_ID, id)
		}
		list := t.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		t.attributes = append(t.attributes, l.bytes[begin:end]...)
		t.close(list)
		begin = end
	}
}

// headSize is the most that comes before the elements in a message: header, and names of table and set.
const headSize = 128

// eachElements changes elements of the sets that are there.
func (t *transaction) eachElements(typ uint16, l *layout, lists elementLists) {
	bytes := 0
	for _, list := range lists {
		bytes += len(list.bytes) + (len(list.cuts)+1)*headSize
	}
	t.attributes = slices.Grow(t.attributes, bytes)
	for i := range l.sets {
		if list := lists[l.sets[i].name]; list != nil {
			t.changeElements(typ, l.sets[i].name, 0, list)
		}
	}
}

// messages ends the batch: all of it. Nothing: there is nothing to do.
func (t *transaction) messages() ([]byte, error) {
	if t.err != nil {
		return nil, fmt.Errorf("encoding: %w", t.err)
	}
	if t.count == 1 {
		return nil, nil
	}
	// One answer, to the last message before the end of the batch. An error, wherever it is, comes before it.
	t.acknowledge()
	t.edge(unix.NFNL_MSG_BATCH_END)
	t.finish()
	return t.attributes, nil
}

// flushRules removes all rules of the table.
func (t *transaction) flushRules() {
	t.message(unix.NFT_MSG_DELRULE, 0)
	t.text(unix.NFTA_RULE_TABLE, t.table)
}
