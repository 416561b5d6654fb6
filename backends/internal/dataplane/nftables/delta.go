// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// delta is what a transaction adds and removes.
type delta struct {
	opts     dataplane.Options
	old, now *renderer
	// add and del take elements as they come.
	add, del func(*element)

	addSets, delSets     []affinitySet
	newChains, delChains []string
	flush                []string
	// newRules are those of new chains, rules those of chains that were flushed.
	newRules, rules []commented
	common          map[string]common // by name, those in uses
	uses            uses
	size            size
}

// size is how much there is of what is not elements.
type size struct {
	// objects are the chains and the sets, as the kernel counts a table's: without those of rules. affinity are the sets for
	// affinity.
	objects, rules, affinity int
}

func (s *size) plus(t size) size {
	return size{s.objects + t.objects, s.rules + t.rules, s.affinity + t.affinity}
}

// chain counts a chain as added or, with -1, as removed.
func (s *size) chain(rules []rule, by int) {
	s.objects += by
	s.rules += by * len(rules)
}

// commented is a chain with a comment in its first rule.
type commented struct {
	chain
	comment string
}

// uses counts services by what they share: chains by name, members of sets of addresses.
type uses struct {
	chains  map[string]int
	members map[member]int
	// spare chains were used. They stay until the next Replace: a new rule that leads on makes the kernel walk through
	// all frontends, and one about a map of targets through all targets.
	spare map[string]bool
}

func newUses() uses { return uses{map[string]int{}, map[member]int{}, map[string]bool{}} }

func (u uses) count(p *program, by int) {
	for _, c := range p.common {
		u.chains[c.known] += by
	}
	for _, m := range p.members {
		u.members[m] += by
	}
}

// add what was counted since.
func (u uses) add(more uses) {
	sum(u.chains, more.chains)
	sum(u.members, more.members)
	maps.Copy(u.spare, more.spare)
}

func sum[K comparable](to, from map[K]int) {
	for k, n := range from {
		if to[k] += n; to[k] == 0 {
			delete(to, k)
		}
	}
}

// turns tells what was not used and is now, and the other way round.
func turns[K comparable](held, more map[K]int, compare func(a, b K) int) (begun, ended []K) {
	for k, n := range more {
		switch before, now := held[k] > 0, held[k]+n > 0; {
		case now && !before:
			begun = append(begun, k)
		case !now && before:
			ended = append(ended, k)
		}
	}
	slices.SortFunc(begun, compare) // so that transactions are the same every time
	slices.SortFunc(ended, compare)
	return begun, ended
}

func newDelta(o dataplane.Options, add, del func(*element)) *delta {
	return &delta{opts: o, old: newRenderer(o), now: newRenderer(o), add: add, del: del, common: map[string]common{}, uses: newUses()}
}

// service adds what turns a service into another. Either may be nil.
func (d *delta) service(before, after *dataplane.Service) {
	old, now := d.old.render(before), d.now.render(after)
	d.uses.count(old, -1)
	d.uses.count(now, 1)
	for _, p := range []*program{old, now} {
		for _, c := range p.common {
			d.common[c.known] = c.common
		}
	}
	addElems, delElems := differ(old.elems, now.elems)
	for i := range delElems {
		d.del(&delElems[i])
	}
	for i := range addElems {
		d.add(&addElems[i])
	}
	addSets, delSets := differ(old.sets, now.sets)
	d.addSets, d.delSets = append(d.addSets, addSets...), append(d.delSets, delSets...)
	more := len(addSets) - len(delSets)
	d.size = d.size.plus(size{objects: more, affinity: more})
	if after != nil {
		d.ownChains(old.chains, now.chains, Comment(after.Name))
	} else {
		d.ownChains(old.chains, nil, "")
	}
}

func (d *delta) ownChains(old, now []chain, comment string) {
	was := make(map[string][]rule, len(old))
	for _, c := range old {
		was[c.name] = c.rules
	}
	for _, c := range now {
		rules, ok := was[c.name]
		delete(was, c.name)
		if ok && slices.EqualFunc(rules, c.rules, func(a, b rule) bool { return a.text() == b.text() }) {
			continue
		}
		if ok {
			d.flush = append(d.flush, c.name)
			d.rules = append(d.rules, commented{c, comment})
			d.size.chain(rules, -1)
		} else {
			d.newChains = append(d.newChains, c.name)
			d.newRules = append(d.newRules, commented{c, comment})
		}
		d.size.chain(c.rules, 1)
	}
	for _, c := range old {
		if _, gone := was[c.name]; gone {
			d.delChains = append(d.delChains, c.name)
			d.size.chain(c.rules, -1)
		}
	}
}

// differ tells what is in now only, and what is in old only.
func differ[T comparable](old, now []T) (add, del []T) {
	if len(old) == 0 || len(now) == 0 {
		return now, old
	}
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

// finish adds what follows from the counts: chains and members that are not used yet, or not any more.
func (d *delta) finish(held uses) {
	begun, ended := turns(held.chains, d.uses.chains, strings.Compare)
	for _, name := range begun {
		if held.spare[name] {
			continue
		}
		rules := d.common[name].rules(d.opts)
		d.newChains = append(d.newChains, name)
		d.newRules = append(d.newRules, commented{chain{name, rules}, ""})
		d.size.chain(rules, 1)
	}
	for _, name := range ended {
		if _, many := d.common[name].(origin); !many { // there are as many of those as pairs of the others
			d.uses.spare[name] = true
			continue
		}
		d.delChains = append(d.delChains, name)
		d.size.chain(d.common[name].rules(d.opts), -1)
	}
	beginning, ending := turns(held.members, d.uses.members, member.compare)
	for _, m := range ending {
		d.del(m.element())
	}
	for _, m := range beginning {
		d.add(m.element())
	}
}

func (m member) compare(n member) int {
	if c := strings.Compare(m.set, n.set); c != 0 {
		return c
	}
	return m.ip.Compare(n.ip)
}

func (m member) element() *element {
	return &element{set: m.set, key: dataplane.Key{IP: m.ip}, twice: strings.HasPrefix(m.set, "hairpin")}
}

// writeNew writes what is new and that nothing leads to yet. Affinity sets that are kept are there.
func (d *delta) writeNew(t *transaction, kept map[string]bool) {
	for _, s := range d.addSets {
		if !kept[s.name] {
			t.addAffinitySet(s)
		}
	}
	for _, name := range d.newChains {
		t.addChain(name)
		t.flushChain(name) // it may be there, after an Apply that failed
	}
	for _, c := range d.newRules {
		t.addRules(c.chain, c.comment)
	}
}

// write the rest in the order that the kernel wants: a chain goes when nothing goes to it any more.
func (d *delta) write(t *transaction, l *layout, add, del elementLists) {
	t.eachElements(unix.NFT_MSG_DELSETELEM, l, del)
	for _, name := range append(d.flush, d.delChains...) {
		t.flushChain(name)
	}
	for _, c := range d.rules {
		t.addRules(c.chain, c.comment)
	}
	t.eachElements(unix.NFT_MSG_NEWSETELEM, l, add)
	for _, name := range d.delChains {
		t.delChain(name)
	}
	for _, s := range d.delSets {
		t.delSet(s.name)
	}
}
