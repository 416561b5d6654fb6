// SPDX-License-Identifier: Apache-2.0

// Package claims decides who has a frontend that several Services want: the first that came, for as long as it wants
// it. Of several that come at once (as all do at start) it is the oldest, or else the first by name, whatever order they
// come in, so that every node decides alike, and the same after a restart. An address claimed for any protocol is claimed whole: ports of it are another Service's no more.
//
// What the API server gave out, cluster IPs and node ports, is its Service's before all that somebody wrote into another
// one: an external IP that is another Service's cluster IP must not take its traffic (CVE-2020-8554).
package claims

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Table knows who wants what. The zero value is not usable; see [New].
type Table struct {
	wanted    map[string]*dataplane.Service // by name: what each asked for
	given     map[string]*dataplane.Service // what each has of that
	addrs     map[netip.Addr]*address
	conflicts int
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
func (t *Table) Conflicts() int { return t.conflicts }

// Update takes what Services now want (New nil: nothing more; Old is not looked at) and says what changes: what each
// Service gets is what it wants without the frontends that are another's. That may concern Services that were not named:
// what one lets go falls to the next. Refusals are those of the Services in the result. It costs what the Services have
// that it looks at: those that were named, and those that wait for what they let go.
func (t *Table) Update(changes []dataplane.Change) ([]dataplane.Change, []Refusal) {
	touched := map[string]bool{}
	for _, c := range changes {
		touched[c.Name()] = true
		t.want(c.Name(), c.New, touched)
	}
	for _, name := range byAge(touched, t.wanted) {
		t.seize(name, touched)
	}
	var out []dataplane.Change
	var refused []Refusal
	for _, name := range byAge(touched, t.wanted) {
		old := t.given[name]
		now, no := t.give(name)
		if !dataplane.Equal(old, now) {
			out = append(out, dataplane.Change{Old: old, New: now})
			refused = append(refused, no...)
		}
	}
	return out, refused
}

// byAge orders names by the age of their Services, and by name.
func byAge(names map[string]bool, services map[string]*dataplane.Service) []string {
	created := func(name string) (at time.Time) {
		if s := services[name]; s != nil {
			at = s.Created
		}
		return at
	}
	return slices.SortedFunc(maps.Keys(names), func(a, b string) int {
		return cmp.Or(created(a).Compare(created(b)), cmp.Compare(a, b))
	})
}

// want replaces what a Service asks for, lets go of what it asks for no more, and names those who waited for it.
func (t *Table) want(name string, now *dataplane.Service, touched map[string]bool) {
	if old := t.wanted[name]; old != nil {
		keep := map[dataplane.Key]bool{}
		if now != nil {
			for i := range now.Frontends {
				keep[now.Frontends[i].Key()] = isFirm(&now.Frontends[i])
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

// isFirm tells whether the API server gave a frontend to its Service.
func isFirm(f *dataplane.Frontend) bool {
	return f.Kind == dataplane.ClusterIP || f.Kind == dataplane.NodePort
}

// release ends that a Service waits for a key, and that it has it unless it keeps it: keep says whether firmly.
func (t *Table) release(name string, k dataplane.Key, keep map[dataplane.Key]bool, touched map[string]bool) {
	a := t.addrs[k.IP]
	if a == nil {
		return
	}
	if a.stopWaiting(name, k) {
		t.conflicts--
	}
	if a.owners[k] == name {
		was := a.firm[k]
		firm, kept := keep[k]
		if kept {
			a.own(name, k, firm)
		} else {
			a.disown(name, k)
		}
		if !kept || was && !firm { // who waits may have it from the API server
			a.wake(k, touched)
		}
	}
	if len(a.owners) == 0 && len(a.waiting) == 0 {
		delete(t.addrs, k.IP)
	}
}

// seize hands a Service what the API server gave it, and names those who lose it.
func (t *Table) seize(name string, touched map[string]bool) {
	want := t.wanted[name]
	if want == nil {
		return
	}
	for i := range want.Frontends {
		f := &want.Frontends[i]
		if !isFirm(f) {
			continue
		}
		if a := t.address(f.IP); a.evict(name, f.Key(), touched) {
			a.own(name, f.Key(), true)
		}
	}
}

func (t *Table) address(ip netip.Addr) *address {
	a := t.addrs[ip]
	if a == nil {
		a = newAddress()
		t.addrs[ip] = a
	}
	return a
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
	a := t.address(k.IP)
	if a.stopWaiting(name, k) {
		t.conflicts--
	}
	if owner := a.taken(name, k); owner != "" {
		a.wait(name, k)
		t.conflicts++
		return owner
	}
	a.own(name, k, a.firm[k])
	return name
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
