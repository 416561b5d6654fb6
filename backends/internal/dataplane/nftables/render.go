// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// program is what one Service becomes.
type program struct {
	// elems are in maps that all services share, where their keys are nobody else's.
	elems []element
	// common chains and members of sets may be other services' as well.
	common  []named
	members []member
	// sets and chains are the Service's own.
	sets   []affinitySet
	chains []chain
}

// member is an address in one of the sets of addresses.
type member struct {
	set string
	ip  netip.Addr
}

type chain struct {
	name  string
	rules []rule
}

// renderer renders one service after the other, with the same memory.
type renderer struct {
	opts    dataplane.Options
	service *dataplane.Service
	comment string
	out     program
	known   map[string]bool   // the common chains and the affinity sets there are
	pools   map[string]string // chains with affinity by what they do
	members map[member]bool
	names   map[common]string // those that were needed so far
}

func newRenderer(opts dataplane.Options) *renderer {
	return &renderer{opts: opts, known: map[string]bool{}, pools: map[string]string{}, members: map[member]bool{}, names: map[common]string{}}
}

// render is pure. What it returns is true until it is called again. No service becomes nothing.
func (r *renderer) render(s *dataplane.Service) *program {
	r.out = program{r.out.elems[:0], r.out.common[:0], r.out.members[:0], r.out.sets[:0], r.out.chains[:0]}
	clear(r.known)
	clear(r.pools)
	clear(r.members)
	if s == nil {
		return &r.out
	}
	r.service, r.comment = s, Comment(s.Name)
	for i := range s.Frontends {
		r.frontend(&s.Frontends[i])
	}
	for _, e := range s.Egress {
		r.out.elems = append(r.out.elems, element{set: "egress" + familyOf(e.IP).suffix,
			key: dataplane.Key{IP: e.Source}, to: place{ip: e.IP}, comment: r.comment})
	}
	return &r.out
}

func (r *renderer) frontend(f *dataplane.Frontend) {
	fam := familyOf(f.IP)
	set := "ports"
	switch kindOf(f) {
	case "node":
		set = "nodeports"
	case "any":
		set = "any"
	}
	r.out.elems = append(r.out.elems, element{set: set + fam.suffix, key: f.Key(), verdict: r.entry(fam, f), comment: r.comment})
}

// kindOf is the kind of maps that a frontend is in.
func kindOf(f *dataplane.Frontend) string {
	switch {
	case f.Kind == dataplane.NodePort:
		return "node"
	case f.Protocol == dataplane.Any:
		return "any"
	}
	return ""
}

// entry is the chain that a frontend's traffic begins in.
func (r *renderer) entry(fam *family, f *dataplane.Frontend) string {
	to := r.pool(fam, f, &f.Pool)
	if len(f.Pool.Targets) > 0 && f.Masquerade != dataplane.Never {
		to = r.add(f, marking{f.Masquerade, fam, to}, "masq")
	}
	if f.Local != nil {
		if local := r.pool(fam, f, f.Local); local != to { // else it is the same wherever it comes from
			to = r.add(f, origin{fam, to, local}, "origin")
		}
	}
	everybody := func(p netip.Prefix) bool { return p.Bits() == 0 }
	switch {
	case f.Sources == nil || slices.ContainsFunc(f.Sources, everybody):
		return to
	case len(f.Sources) == 0:
		return emptyChain(dataplane.Drop)
	}
	return r.chain("front", f.Key(), fromSources(fam, f.Sources, to))
}

// fewSources are looked at one by one. For more there is a set, which the kernel searches faster, but makes the slower the
// more there are.
const fewSources = 10

func fromSources(fam *family, sources []netip.Prefix, to string) []rule {
	if len(sources) > fewSources {
		return []rule{{fam.notFrom(sources), drop}, {goTo(to)}}
	}
	var rules []rule
	for _, p := range disjoint(sources) {
		rules = append(rules, rule{fam.from(p), goTo(to)})
	}
	return append(rules, rule{drop})
}

// add a chain that may be common: it is the frontend's own if it is about affinity, as what it leads to then is.
func (r *renderer) add(f *dataplane.Frontend, c common, own string) string {
	if f.Affinity > 0 {
		return r.chain(own, f.Key(), c.rules(r.opts))
	}
	return r.common(c)
}

func (r *renderer) common(c common) string {
	name, ok := r.names[c]
	if !ok {
		name = c.name()
		r.names[c] = name
	}
	if !r.known[name] {
		r.known[name] = true
		r.out.common = append(r.out.common, named{c, name})
	}
	return name
}

// pool is the chain that chooses a target.
func (r *renderer) pool(fam *family, f *dataplane.Frontend, p *dataplane.Pool) string {
	if len(p.Targets) == 0 {
		return emptyChain(p.Empty)
	}
	for _, t := range p.Targets {
		if t.Local {
			r.member("hairpin"+fam.suffix, t.IP)
			r.member("local"+fam.suffix, t.IP)
		}
	}
	if f.Affinity > 0 {
		return r.affinityPool(fam, f, p)
	}
	l := lookup{f: fam, kind: kindOf(f), local: p == f.Local}
	set := l.set()
	for i, t := range p.Targets {
		r.out.elems = append(r.out.elems, element{set: set, key: f.Key(), index: i, indexed: true, to: placeOf(f, t)})
	}
	return r.common(choiceOf(l, f.Protocol, len(p.Targets)))
}

func placeOf(f *dataplane.Frontend, t dataplane.Target) place {
	if t.Port == 0 {
		return place{t.IP, f.Port}
	}
	return place{t.IP, t.Port}
}

func (r *renderer) member(set string, ip netip.Addr) {
	if m := (member{set, ip}); !r.members[m] {
		r.members[m] = true
		r.out.members = append(r.out.members, m)
	}
}

// affinityPool is a chain of the Service's own; frontends of the Service that have the same targets share it.
func (r *renderer) affinityPool(fam *family, f *dataplane.Frontend, p *dataplane.Pool) string {
	places := make([]place, len(p.Targets))
	var b strings.Builder
	fmt.Fprint(&b, fam.suffix, f.Protocol, f.Affinity)
	for i, t := range p.Targets {
		places[i] = placeOf(f, t)
		b.WriteString(places[i].text())
		b.WriteByte(',')
	}
	id := b.String()
	if name, ok := r.pools[id]; ok {
		return name
	}
	kind := "pool"
	if p == f.Local {
		kind = "local"
	}
	r.pools[id] = r.chain(kind, f.Key(), r.affinity(fam, f, places))
	return r.pools[id]
}

// affinity sends clients where they were sent before, and others at random. What is remembered of a target is in a set of
// its own, so that it goes when the target goes and stays when others do.
func (r *renderer) affinity(fam *family, f *dataplane.Frontend, places []place) []rule {
	var rules []rule
	chains := make([]string, len(places))
	for i, p := range places {
		id := fmt.Sprintf("%s %s %s %s", r.service.Name, f.Protocol, f.Affinity, p.text())
		set := affinityPrefix + fam.suffix + "-" + hash(id)
		chains[i] = "target" + fam.suffix + "-" + hash(id)
		rules = append(rules, rule{fam.in("saddr", set, false), goTo(chains[i])})
		if r.known[set] {
			continue
		}
		r.known[set] = true
		r.out.sets = append(r.out.sets, affinitySet{set, fam, f.Affinity})
		r.out.chains = append(r.out.chains, chain{chains[i], []rule{{fam.remember(set)}, r.redirect(fam, f.Protocol, p)}})
	}
	return append(rules, rule{gotoAny(chains)})
}

// affinityPrefix begins the names of affinity sets, and of nothing else.
const affinityPrefix = "affinity"

// redirect sends to a place.
func (r *renderer) redirect(fam *family, p dataplane.Protocol, to place) rule {
	var out rule
	if p != dataplane.Any {
		out = append(out, l4proto(p))
	}
	return append(out, setMark("ct", r.opts.ConnMark), fam.dnatTo(to))
}

func (r *renderer) chain(kind string, k dataplane.Key, rules []rule) string {
	name := kind + familyOf(k.IP).suffix + "-" + hash(r.service.Name+" "+k.String())
	r.out.chains = append(r.out.chains, chain{name, rules})
	return name
}

// hash shortens a name to what is safe and, for all purposes, its own.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
}

// maxComment is well under the kernel's 128 bytes.
const maxComment = 100

// Comment is the name of a service as comments have it. What could end a quoted text, or is too long, is replaced and
// told apart by a hash.
func Comment(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("-./_:", r):
			return r
		}
		return '_'
	}, name)
	if clean == name && len(name) <= maxComment {
		return name
	}
	if len(clean) > maxComment-17 {
		clean = clean[:maxComment-17]
	}
	return clean + "~" + hash(name)
}
