// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
)

// changes are Services that change while they are used.
type changes struct {
	ports, policy, deleted, withdrawn, handedOver, scaled *service
	// followed is what clients ask that keep their source port; draining has one whose pod terminates.
	followed, draining *service
}

func newChanges(t *table) *changes {
	t.kind = "before any change"
	add := func(name string, pods ...string) *service {
		s := t.service(name, spec{outside: true, endpoints: at(pods...)})
		for _, pod := range pods {
			t.ask("n1-c", s, s.clusterIP, by{pod: "n1-c"})
		}
		return s
	}
	return &changes{
		ports: add("change-ports", "n1-a"), policy: add("change-policy", "n2-a"), deleted: add("change-deleted", "n1-a"),
		withdrawn: add("change-withdrawn", "n1-a"), handedOver: add("change-handed-over", "n1-a"), scaled: add("change-scaled", "n1-a"),
		followed: add("change-followed", "n1-a"), draining: add("change-draining", "n1-a"),
	}
}

// step is a change on the API server, and what is true once the proxies have it.
type step struct {
	name     string
	change   func(context.Context) error
	ask      func(*table)
	followed string // the pod that the clients with a fixed port reach; "" is none
}

func (c *changes) steps() []step {
	return []step{
		{"changed", c.away, c.askAway, "n1-b"},
		{"and back", c.back, c.askBack, "n2-a"},
		{"to nowhere", func(ctx context.Context) error { return c.followed.setEndpoints(ctx, nil) }, c.askDrained, ""},
		{"and here again", func(ctx context.Context) error { return c.followed.setEndpoints(ctx, at("n1-a")) }, c.askDrained, "n1-a"},
	}
}

func (c *changes) away(ctx context.Context) error {
	other := "another-proxy"
	return errors.Join(
		c.ports.update(ctx, otherPorts),
		c.policy.update(ctx, externalLocal),
		c.deleted.remove(ctx),
		c.withdrawn.setIngress(ctx, false),
		c.handedOver.setProxy(ctx, &other),
		c.scaled.setEndpoints(ctx, nil),
		c.followed.setEndpoints(ctx, at("n1-b")),
		c.draining.setEndpoints(ctx, append(terminating("n1-a"), at("n1-b")...)),
	)
}

// otherPorts takes UDP away and adds a port.
func otherPorts(s *corev1.ServiceSpec) {
	added := corev1.ServicePort{Name: "more", Protocol: corev1.ProtocolTCP, Port: 90, NodePort: 32090, TargetPort: intstr.FromInt32(nstest.Port)}
	s.Ports = []corev1.ServicePort{s.Ports[0], added}
}

func (c *changes) askAway(t *table) {
	t.ask("n1-c", c.ports, c.ports.clusterIP, by{"n1-a": "n1-c"}).in(nstest.TCP)
	t.ask("n1-c", c.ports, c.ports.clusterIP.on(90), by{"n1-a": "n1-c"}).in(nstest.TCP)
	t.ask("n1-c", c.ports, c.ports.clusterIP, silence).in(nstest.UDP).with(kubeProxyNFTables, unknownPort, refused)
	t.ask("client", c.ports, c.ports.nodePort.on(32090), by{"n1-a": "client"}).in(nstest.TCP).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	t.ask("client", c.policy, c.policy.nodePort, silence)
	t.ask("client", c.policy, c.policy.externalIP, silence)
	t.ask("n1-c", c.policy, c.policy.externalIP, by{"n2-a": "n1-c"})
	for _, s := range []*service{c.deleted, c.handedOver} {
		for _, to := range append(s.fromOutside(), s.clusterIP) {
			t.ask("n1-c", s, to, nothing)
		}
	}
	t.ask("client", c.withdrawn, c.withdrawn.loadBalancerIP, nothing)
	t.ask("client", c.withdrawn, c.withdrawn.externalIP, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
	for _, to := range append(c.scaled.fromOutside(), c.scaled.clusterIP) {
		t.ask("n1-c", c.scaled, to, refused)
	}
	c.askDrained(t)
}

// askDrained: what is new goes to the pod that stays.
func (c *changes) askDrained(t *table) {
	t.ask("n1-c", c.draining, c.draining.clusterIP, by{"n1-b": "n1-c"})
}

func (c *changes) back(ctx context.Context) error {
	return errors.Join(
		c.ports.update(ctx, nil),
		c.policy.update(ctx, func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }),
		c.deleted.create(ctx),
		c.withdrawn.setIngress(ctx, true),
		c.handedOver.setProxy(ctx, nil),
		c.scaled.setEndpoints(ctx, at("n2-a")),
		c.followed.setEndpoints(ctx, at("n2-a")),
	)
}

func (c *changes) askBack(t *table) {
	for _, s := range []*service{c.ports, c.deleted, c.withdrawn, c.handedOver} {
		for _, to := range s.fromOutside() {
			t.ask("client", s, to, by{"n1-a": "client"}).with(kubeProxy, hidesClients, by{"n1-a": "n1"})
		}
		t.ask("n1-c", s, s.clusterIP, by{"n1-a": "n1-c"})
	}
	t.ask("n1-c", c.ports, c.ports.clusterIP.on(90), silence).in(nstest.TCP).with(kubeProxyNFTables, unknownPort, refused)
	for _, to := range c.policy.fromOutside() {
		t.ask("client", c.policy, to, by{"n2-a": "n1"})
		t.ask("client", c.scaled, to, by{"n2-a": "n1"})
	}
	c.askDrained(t)
}

// clients are those of a world that keep their source port: one for each family and address of the followed Service, and one
// for each family of the draining.
type clients struct{ follow, drain map[string]*nstest.Datagrams }

// start has the clients of a world ask from now on.
func (c *changes) start(t *testing.T, w *world) clients {
	t.Helper()
	all := clients{map[string]*nstest.Datagrams{}, map[string]*nstest.Datagrams{}}
	port := uint16(5060)
	for _, f := range nstest.Families {
		for _, to := range append(c.followed.fromOutside(), c.followed.clusterIP) {
			port++
			all.follow[fmt.Sprintf("%s, %s", to.name, to.in(f))] = w.SendDatagrams(t, "client", port, to.in(f))
		}
		port++
		to := c.draining.clusterIP.in(f)
		all.drain[to.String()] = w.SendDatagrams(t, "client", port, to)
	}
	return all
}

// check tells where the clients are. Once the rules are there, flows are to follow within a second.
func (all clients) check(t *testing.T, w *world, pod, before string) {
	t.Helper()
	const soon = time.Second
	why := "a flow follows"
	if pod == "" && w.proxy&kubeProxy != 0 {
		pod, why = before, string(keepsFlows)
	}
	for to, d := range all.follow {
		if pod == "" {
			require.NoError(t, d.Silent(soon), to)
		} else {
			require.NoError(t, d.AnsweredBy(pod, soon), "%s: %s", to, why)
		}
	}
	for to, d := range all.drain {
		require.NoError(t, d.AnsweredBy("n1-a", soon), "%s: a flow stays with its pod until that has ended", to)
	}
}

func (c *changes) run(t *testing.T, r *session) {
	t.Helper()
	flows := map[*world]clients{}
	for _, w := range r.worlds {
		flows[w] = c.start(t, w)
	}
	r.each(t, "clients start", func(t *testing.T, w *world) { flows[w].check(t, w, "n1-a", "") })
	before := ""
	for _, step := range c.steps() {
		require.NoError(t, step.change(t.Context()), step.name)
		r.settle(t)
		asked := &table{kind: step.name}
		step.ask(asked)
		r.each(t, step.name, func(t *testing.T, w *world) {
			flows[w].check(t, w, step.followed, before)
			w.checkAll(t, asked.rows)
		})
		before = step.followed
	}
}
