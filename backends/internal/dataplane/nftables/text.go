// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Text is [dataplane.Writer]'s: the table in nft's language. `nft -f` takes it.
func (w *Writer) Text(services []*dataplane.Service) string {
	var d delta
	var chains []commented
	for _, s := range services {
		d.add(render(w.opts, s), Comment(s.Name))
	}
	d.countMembers(nil, map[member]int{})
	chains = append(chains, d.rules...)

	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", w.opts.Owner)
	for i := range w.layout.sets {
		w.layout.sets[i].text(&b, d.addElems)
	}
	for _, s := range d.addSets {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %ds\n\t}\n",
			s.name, s.f.addr.Name, maxClients, int(s.timeout.Seconds()))
	}
	for _, c := range w.layout.chains {
		writeChain(&b, c, "", "")
	}
	for _, p := range w.layout.bases {
		head := fmt.Sprintf("\t\ttype nat hook %s priority %d; policy accept;\n", p.hookName, p.priority)
		writeChain(&b, chain{p.name, p.rules}, head, "")
	}
	for _, c := range chains {
		writeChain(&b, c.chain, "", c.comment)
	}
	b.WriteString("}\n")
	return b.String()
}

func writeChain(b *strings.Builder, c chain, head, comment string) {
	fmt.Fprintf(b, "\tchain %s {\n%s", c.name, head)
	for i, r := range c.rules {
		b.WriteString("\t\t" + r.text())
		if i == 0 && comment != "" {
			fmt.Fprintf(b, " comment %q", comment)
		}
		b.WriteByte('\n')
	}
	b.WriteString("\t}\n")
}

func (s *shared) text(b *strings.Builder, all []element) {
	keys := make([]string, len(s.key))
	for i, k := range s.key {
		keys[i] = k.Name
	}
	kind, typ := "set", strings.Join(keys, " . ")
	if s.data.Name != "" {
		kind, typ = "map", typ+" : "+s.data.Name
	}
	fmt.Fprintf(b, "\t%s %s {\n\t\ttype %s\n", kind, s.name, typ)
	var elems []string
	if s.ranges {
		b.WriteString("\t\tflags interval\n")
		for _, p := range disjoint(s.network) {
			elems = append(elems, p.String())
		}
	}
	for i := range all {
		if all[i].set == s.name {
			elems = append(elems, all[i].text())
		}
	}
	if len(elems) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elems, ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n")
}

func (e *element) text() string {
	var key []string
	if !e.key.IP.IsUnspecified() {
		key = append(key, e.key.IP.String())
	}
	if e.key.Protocol != 0 {
		key = append(key, e.key.Protocol.String(), fmt.Sprint(e.key.Port))
	}
	if e.twice {
		key = append(key, key...)
	}
	text := strings.Join(key, " . ")
	if e.comment != "" {
		text += fmt.Sprintf(" comment %q", e.comment)
	}
	switch {
	case e.verdict != "":
		text += " : goto " + e.verdict
	case e.value.IsValid():
		text += " : " + e.value.String()
	}
	return text
}
