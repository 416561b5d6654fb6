// SPDX-License-Identifier: Apache-2.0

// Package claims decides who has a frontend that several Services want: the first that came, for as long as it wants
// it. Of several that come at once (as all do at start) it is the first by name, whatever order they come in, so every
// node decides alike. An address claimed for any protocol is claimed whole: ports of it are another Service's no more.
package claims

import (
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Table knows who wants what. The zero value is not usable; see [New].
type Table struct {
	wanted map[string]*dataplane.Service // by name: what each asked for
	given  map[string]*dataplane.Service // what each has of that
	addrs  map[netip.Addr]*address
}

// address is the state of one address; node ports are on the unspecified ones.
type address struct {
	owners  map[dataplane.Key]string
	waiting map[string]int // names that want something of it and did not get it: how many keys
}

// Refusal says that a Service does not get a frontend.
type Refusal struct {
	Service string
	Key     dataplane.Key
	Owner   string
}

// New is a table without claims.
func New() *Table {
	return &Table{wanted: map[string]*dataplane.Service{}, given: map[string]*dataplane.Service{}, addrs: map[netip.Addr]*address{}}
}

// Conflicts is how many frontends are wanted by Services that do not have them.
func (t *Table) Conflicts() int {
	n := 0
	for _, a := range t.addrs {
		for _, k := range a.waiting {
			n += k
		}
	}
	return n
}

// Update takes what Services now want (New nil: nothing more; Old is not looked at) and says what changes: what each
// Service gets is what it wants without the frontends that are another's. That may concern Services that were not named:
// what one lets go falls to the next. Refusals are those of the Services in the result.
func (t *Table) Update(changes []dataplane.Change) ([]dataplane.Change, []Refusal) {
	touched := map[string]bool{}
	for _, c := range changes {
		touched[c.Name()] = true
	}
	for _, c := range changes {
		t.want(c.Name(), c.New, touched)
	}
	names := make([]string, 0, len(touched))
	for name := range touched {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)

	var out []dataplane.Change
	var refused []Refusal
	for _, name := range names {
		old := t.given[name]
		now, no := t.give(name)
		if !dataplane.Equal(old, now) {
			out = append(out, dataplane.Change{Old: old, New: now})
			refused = append(refused, no...)
		}
	}
	return out, refused
}

// want replaces what a Service asks for, lets go of what it asks for no more, and names those who waited for it.
func (t *Table) want(name string, now *dataplane.Service, touched map[string]bool) {
	if old := t.wanted[name]; old != nil {
		keep := map[dataplane.Key]bool{}
		if now != nil {
			for i := range now.Frontends {
				keep[now.Frontends[i].Key()] = true
			}
		}
		for i := range old.Frontends {
			t.release(name, old.Frontends[i].Key(), keep, touched)
		}
	}
	if now == nil {
		delete(t.wanted, name)
		return
	}
	t.wanted[name] = now
}

func (t *Table) release(name string, k dataplane.Key, keep map[dataplane.Key]bool, touched map[string]bool) {
	a := t.addrs[k.IP]
	if a == nil {
		return
	}
	delete(a.waiting, name)
	if a.owners[k] == name && !keep[k] {
		delete(a.owners, k)
		for other := range a.waiting {
			touched[other] = true
		}
	}
	if len(a.owners) == 0 && len(a.waiting) == 0 {
		delete(t.addrs, k.IP)
	}
}

// give hands a Service what it wants and may have.
func (t *Table) give(name string) (*dataplane.Service, []Refusal) {
	want := t.wanted[name]
	if want == nil {
		delete(t.given, name)
		return nil, nil
	}
	got := *want
	got.Frontends = make([]dataplane.Frontend, 0, len(want.Frontends))
	var refused []Refusal
	for i := range want.Frontends {
		if a := t.addrs[want.Frontends[i].IP]; a != nil {
			delete(a.waiting, name)
		}
	}
	for _, f := range want.Frontends {
		if owner := t.claim(name, f.Key()); owner != name {
			refused = append(refused, Refusal{Service: name, Key: f.Key(), Owner: owner})
			continue
		}
		got.Frontends = append(got.Frontends, f)
	}
	if len(refused) > 0 {
		got.Egress = egressOf(&got)
	}
	t.given[name] = &got
	return &got, refused
}

// claim tells who has the key, which is the caller if nobody had it.
func (t *Table) claim(name string, k dataplane.Key) (owner string) {
	a := t.addrs[k.IP]
	if a == nil {
		a = &address{owners: map[dataplane.Key]string{}, waiting: map[string]int{}}
		t.addrs[k.IP] = a
	}
	if owner, ok := a.owners[k]; ok && owner == name {
		return name
	}
	if owner := a.taken(name, k); owner != "" {
		a.waiting[name]++
		return owner
	}
	a.owners[k] = name
	return name
}

// taken tells who else has the key, or a part of it.
func (a *address) taken(name string, k dataplane.Key) string {
	if owner := a.owners[k]; owner != "" && owner != name {
		return owner
	}
	whole := dataplane.Key{IP: k.IP}
	if k != whole {
		if owner := a.owners[whole]; owner != name {
			return owner
		}
		return ""
	}
	first := ""
	for _, owner := range a.owners {
		if owner != name && (first == "" || owner < first) {
			first = owner
		}
	}
	return first
}

// egressOf is what of a Service's egress has an address that the Service has.
func egressOf(s *dataplane.Service) []dataplane.Egress {
	var out []dataplane.Egress
	for _, e := range s.Egress {
		if slices.ContainsFunc(s.Frontends, func(f dataplane.Frontend) bool { return f.IP == e.IP }) {
			out = append(out, e)
		}
	}
	return out
}
