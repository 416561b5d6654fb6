// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// leavesAs is a service whose pods leave as its one address.
func leavesAs(name string, ip netip.Addr, pods ...string) change {
	s := service(name, all(ip))
	for _, pod := range pods {
		s.Egress = append(s.Egress, dataplane.Egress{Source: netip.MustParseAddr(pod), IP: ip})
	}
	return change{New: s}
}

func TestSources(t *testing.T) {
	sources, got := NewSources(), map[string]string{} // of each pod
	update := func(changes ...change) int {
		t.Helper()
		out := sources.Update(changes)
		for _, c := range out {
			for pod, name := range got {
				if name == c.Name() {
					delete(got, pod)
				}
			}
			if c.New == nil {
				continue
			}
			for _, e := range c.New.Egress {
				require.Empty(t, got[e.Source.String()], "two leave as %s", e.Source)
				got[e.Source.String()] = c.Name()
			}
		}
		return len(out)
	}
	b, a := leavesAs("b", x, "10.0.0.1", "10.0.0.2"), leavesAs("a", y, "10.0.0.2", "10.0.0.3")
	update(b, a)
	require.Equal(t, map[string]string{"10.0.0.1": "b", "10.0.0.2": "a", "10.0.0.3": "a"}, got, "the first by name")
	require.Len(t, b.New.Egress, 2, "the service itself is not changed")
	require.Equal(t, 1, update(leavesAs("a", y, "10.0.0.2")))
	require.Equal(t, map[string]string{"10.0.0.1": "b", "10.0.0.2": "a"}, got)
	require.Equal(t, 2, update(leavesAs("a", y, "10.0.0.4")), "b gets what a lets go")
	require.Equal(t, map[string]string{"10.0.0.1": "b", "10.0.0.2": "b", "10.0.0.4": "a"}, got)
	update(a)
	require.Equal(t, map[string]string{"10.0.0.1": "b", "10.0.0.2": "b", "10.0.0.3": "a"}, got, "who has it keeps it")
	update(leaves("b"))
	require.Equal(t, map[string]string{"10.0.0.2": "a", "10.0.0.3": "a"}, got)
	require.Equal(t, 1, update(wants("c", tcp(x, 80))), "a service without egress passes")
	update(leaves("a"))
	require.Empty(t, got)
	require.Empty(t, sources.owners)
	require.Empty(t, sources.waiting)
	require.Empty(t, sources.wanted)
}
