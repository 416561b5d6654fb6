// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Text is [dataplane.Writer]'s: the table in nft's language. `nft -f` takes it.
func (w *Writer) Text(services []*dataplane.Service) string {
	elements := map[string][]string{}
	d := newDelta(w.opts, func(e *element) { elements[e.set] = append(elements[e.set], e.text()) }, nil)
	for _, s := range services {
		d.service(nil, s)
	}
	d.finish(newUses())

	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", w.opts.Owner)
	for i := range w.layout.sets {
		w.layout.sets[i].text(&b, elements)
	}
	for _, s := range d.addSets {
		b.WriteString(s.definition())
	}
	for _, c := range w.layout.chains {
		writeChain(&b, c, "", "")
	}
	for _, p := range w.layout.bases {
		head := fmt.Sprintf("\t\ttype %s hook %s priority %d; policy accept;\n", p.typ, p.hookName, p.priority)
		writeChain(&b, chain{p.name, p.rules}, head, "")
	}
	for _, c := range d.newRules {
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

func (s *shared) text(b *strings.Builder, elements map[string][]string) {
	b.WriteString(s.definition())
	elems := elements[s.name]
	for _, p := range disjoint(s.network) {
		elems = append(elems, p.String())
	}
	if len(elems) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elems, ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n")
}
