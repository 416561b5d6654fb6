// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// program is what one Service becomes. Everything in it but elements is the Service's own; elements are in maps that all
// share, where their keys are nobody else's.
type program struct {
	sets   []affinitySet
	chains []chain
	elems  []element
	// members of sets of addresses, which other services may have too.
	members []member
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

// affinitySet holds the clients of one target.
type affinitySet struct {
	name    string
	f       *family
	timeout time.Duration
}

// element of one of the table's maps.
type element struct {
	set     string
	key     dataplane.Key
	verdict string     // the chain to go on in
	value   netip.Addr // for egress
	twice   bool       // the address is the key two times
	comment string
}

type renderer struct {
	opts    dataplane.Options
	service *dataplane.Service
	comment string
	out     program
	pools   map[string]string // chains by what they do
	affine  map[string]bool   // affinity sets there are
	members map[member]bool
}

// render is pure.
func render(opts dataplane.Options, s *dataplane.Service) program {
	r := &renderer{opts: opts, service: s, comment: Comment(s.Name), pools: map[string]string{}, affine: map[string]bool{},
		members: map[member]bool{}}
	for i := range s.Frontends {
		r.frontend(&s.Frontends[i])
	}
	for _, e := range s.Egress {
		r.out.elems = append(r.out.elems, element{set: "egress" + familyOf(e.IP).suffix, key: dataplane.Key{IP: e.Source}, value: e.IP, comment: r.comment})
	}
	return r.out
}

func (r *renderer) frontend(f *dataplane.Frontend) {
	fam := familyOf(f.IP)
	set := map[bool]string{true: "any", false: "ports"}[f.Protocol == dataplane.Any]
	if f.Kind == dataplane.NodePort {
		set = "nodeports"
	}
	r.out.elems = append(r.out.elems, element{set: set + fam.suffix, key: f.Key(), verdict: r.entry(fam, f), comment: r.comment})
}

// entry is the chain that a frontend's traffic begins in.
func (r *renderer) entry(fam *family, f *dataplane.Frontend) string {
	var rules []rule
	if f.Sources != nil {
		rules = r.sources(fam, f.Sources)
	}
	inside := r.inside(fam, f)
	if f.Local != nil {
		local := r.pool(fam, f, f.Local)
		rules = append(rules,
			rule{fam.in("saddr", "cluster"+fam.suffix, false), goTo(inside)},
			rule{fibLocal("saddr"), goTo(inside)},
			rule{goTo(local)})
	} else if len(rules) > 0 {
		rules = append(rules, rule{goTo(inside)})
	}
	if len(rules) == 0 {
		return inside
	}
	return r.chain("front", f.Key(), rules)
}

func (r *renderer) sources(fam *family, sources []netip.Prefix) []rule {
	for _, p := range sources {
		if p.Bits() == 0 {
			return nil
		}
	}
	if len(sources) == 0 {
		return []rule{{drop}}
	}
	return []rule{{fam.notFrom(sources), drop}}
}

// inside is where a frontend's traffic goes that no Local pool takes.
func (r *renderer) inside(fam *family, f *dataplane.Frontend) string {
	pool := r.pool(fam, f, &f.Pool)
	if len(f.Pool.Targets) == 0 {
		return pool
	}
	switch f.Masquerade {
	case dataplane.NonLocal:
		return r.chain("masq", f.Key(), []rule{
			{fam.in("saddr", "cluster"+fam.suffix, true), setMark("meta", r.opts.Mark)},
			{goTo(pool)},
		})
	case dataplane.Always:
		return r.chain("masq", f.Key(), []rule{{setMark("meta", r.opts.MarkAlways), goTo(pool)}})
	}
	return pool
}

// pool is the chain that chooses a target; frontends of a service that have the same share it.
func (r *renderer) pool(fam *family, f *dataplane.Frontend, p *dataplane.Pool) string {
	if len(p.Targets) == 0 {
		return emptyChain(p.Empty)
	}
	places := make([]place, len(p.Targets))
	for i, t := range p.Targets {
		places[i] = place{t.IP, t.Port}
		if t.Port == 0 {
			places[i].port = f.Port
		}
		if t.Local {
			r.member("hairpin"+fam.suffix, t.IP)
		} else if f.Masquerade == dataplane.NonLocal {
			r.member("remote"+fam.suffix, t.IP)
		}
	}
	var b strings.Builder
	fmt.Fprint(&b, fam.suffix, f.Protocol, f.Affinity)
	for _, p := range places {
		b.WriteString(p.text())
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
	var rules []rule
	if f.Affinity > 0 {
		rules = r.affinity(fam, f, places)
	} else {
		rules = []rule{r.redirect(fam, f.Protocol, places)}
	}
	name := r.chain(kind, f.Key(), rules)
	r.pools[id] = name
	return name
}

func (r *renderer) member(set string, ip netip.Addr) {
	if m := (member{set, ip}); !r.members[m] {
		r.members[m] = true
		r.out.members = append(r.out.members, m)
	}
}

// redirect sends to one of the places.
func (r *renderer) redirect(fam *family, p dataplane.Protocol, places []place) rule {
	var out rule
	if p != dataplane.Any {
		out = append(out, l4proto(p))
	}
	out = append(out, setMark("ct", r.opts.ConnMark))
	if len(places) == 1 {
		return append(out, fam.dnatTo(places[0]))
	}
	return append(out, fam.dnatAny(places))
}

// affinity sends clients where they were sent before, and others at random. What is remembered of a target is in a set of
// its own, so that it goes when the target goes and stays when others do.
func (r *renderer) affinity(fam *family, f *dataplane.Frontend, places []place) []rule {
	var rules []rule
	chains := make([]string, len(places))
	for i, p := range places {
		id := fmt.Sprintf("%s %s %s %s", r.service.Name, f.Protocol, f.Affinity, p.text())
		set := "affinity" + fam.suffix + "-" + hash(id)
		chains[i] = "target" + fam.suffix + "-" + hash(id)
		rules = append(rules, rule{fam.in("saddr", set, false), goTo(chains[i])})
		if r.affine[set] {
			continue
		}
		r.affine[set] = true
		r.out.sets = append(r.out.sets, affinitySet{set, fam, f.Affinity})
		r.out.chains = append(r.out.chains, chain{chains[i], []rule{
			{fam.remember(set)},
			r.redirect(fam, f.Protocol, []place{p}),
		}})
	}
	return append(rules, rule{gotoAny(chains)})
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
