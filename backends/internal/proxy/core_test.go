// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// told is what a core told the kernel last.
type told map[string]*dataplane.Service

func (k told) tell(list []dataplane.Change) {
	for _, c := range list {
		if delete(k, c.Name()); c.New != nil {
			k[c.Name()] = c.New
		}
	}
}

func (k told) addresses() map[string][]string {
	out := map[string][]string{}
	for name, s := range k {
		out[name] = addressesOf(s)
	}
	return out
}

// testRules ask for all traffic to each external IP, and serve those that have a local endpoint.
var testRules = Rules{Render: renderAll, Finish: func(s *dataplane.Service) *dataplane.Service {
	if len(s.Frontends[0].Pool.Targets) == 0 {
		return nil
	}
	return s
}}

func renderAll(item *fullstate.ServiceEndpoints) *dataplane.Service {
	s := &dataplane.Service{Name: item.Service.NamespacedName()}
	for _, text := range item.Service.IPs.ExternalIPs.All() {
		f := dataplane.Frontend{Kind: dataplane.ExternalIP, IP: netip.MustParseAddr(text)}
		if item.Endpoints[0].Local {
			f.Pool.Targets = []dataplane.Target{{IP: netip.MustParseAddr("11.0.1.2"), Local: true}}
		}
		s.Frontends = append(s.Frontends, f)
	}
	s.Normalize()
	return s
}

func addressesOf(s *dataplane.Service) []string {
	var list []string
	for _, f := range s.Frontends {
		list = append(list, f.IP.String())
	}
	return list
}

func setService(name string, local bool, ips ...string) changes.Change {
	return changes.Change{Op: changes.Set, Item: &fullstate.ServiceEndpoints{
		Service: &localv1.Service{Namespace: "ns", Name: name, IPs: &localv1.ServiceIPs{ExternalIPs: localv1.NewIPSet(ips...)}},
		Endpoints: []*localv1.Endpoint{{IPs: localv1.NewIPSet("11.0.1.2", "1100::202"), Local: local,
			Scopes: &localv1.EndpointScopes{Internal: true}}},
	}}
}

func deleteService(name string) changes.Change {
	return changes.Change{Op: changes.Delete, Item: &fullstate.ServiceEndpoints{Service: &localv1.Service{Namespace: "ns", Name: name}}}
}

func value(t *testing.T, c prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.Write(&m))
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func TestConflict(t *testing.T) {
	m := newMetrics("kpng-test")
	c, k := newCore(testRules, &Guard{}, m), told{}
	update := func(list ...changes.Change) { c.update(list, k.tell) }

	update(setService("b", true, "192.0.2.1", "192.0.2.2"), setService("c", true, "192.0.2.1"))
	require.Equal(t, map[string][]string{"ns/b": {"192.0.2.1", "192.0.2.2"}}, k.addresses(), "the first by name")
	update(setService("a", true, "192.0.2.1", "192.0.2.3"))
	require.Equal(t, []string{"192.0.2.3"}, k.addresses()["ns/a"], "who has it keeps it")
	require.Equal(t, 2., value(t, m.lost))
	require.Equal(t, 2., value(t, m.conflicts))
	update(setService("a", true, "192.0.2.1", "192.0.2.4"))
	require.Equal(t, 2., value(t, m.lost), "counted once")

	update(setService("b", false, "192.0.2.1", "192.0.2.2"))
	require.Equal(t, map[string][]string{"ns/a": {"192.0.2.4"}}, k.addresses(), "without a pod here it keeps the address, and no packet is taken")
	update(deleteService("b"))
	require.Equal(t, map[string][]string{"ns/a": {"192.0.2.1", "192.0.2.4"}}, k.addresses(), "the next by name")
	require.Equal(t, 1., value(t, m.conflicts))
	update(deleteService("a"), deleteService("c"), deleteService("never-there"))
	require.Empty(t, k)
	require.Equal(t, 0., value(t, m.conflicts))

	young, old := setService("a", true, "192.0.2.1"), setService("b", true, "192.0.2.1")
	young.Item.Service.CreatedAt, old.Item.Service.CreatedAt = 2000, 1000
	update(young, old)
	require.Equal(t, map[string][]string{"ns/b": {"192.0.2.1"}}, k.addresses(), "at once: the oldest")
}

func TestNodeAddressesComeAndGo(t *testing.T) {
	m := newMetrics("kpng-test")
	c, k := newCore(testRules, &Guard{}, m), told{}
	mine := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true}
	c.setNode(mine, k.tell)
	c.update([]changes.Change{setService("a", true, "192.0.2.1", "192.0.2.2", "127.0.0.1"), setService("b", true, "192.0.2.1")}, k.tell)
	require.Equal(t, map[string][]string{"ns/a": {"192.0.2.2"}}, k.addresses())
	refusals := m.refusals.WithLabelValues(string(ReasonNode))
	require.Equal(t, 2., value(t, refusals))
	c.setNode(mine, func([]dataplane.Change) { require.Fail(t, "nothing differs") })
	require.Equal(t, 2., value(t, refusals), "counted once")

	c.setNode(map[netip.Addr]bool{}, k.tell)
	require.Equal(t, map[string][]string{"ns/a": {"192.0.2.1", "192.0.2.2"}}, k.addresses())
	c.setNode(mine, k.tell)
	require.Equal(t, map[string][]string{"ns/a": {"192.0.2.2"}}, k.addresses())
	require.Equal(t, 4., value(t, refusals))
	require.Equal(t, 1., value(t, m.refusals.WithLabelValues(string(ReasonSpecial))))
}
