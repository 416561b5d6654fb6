// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/internal/netlab"
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
	deleted  bool   // the Service of that name is
}

func (c *changes) steps() []step {
	return []step{
		{"changed", c.away, c.askAway, "n1-b", true},
		{"and back", c.back, c.askBack, "n2-a", false},
		{"to nowhere", func(ctx context.Context) error { return c.followed.setEndpoints(ctx, nil) }, c.askDrained, "", false},
		{"and here again", func(ctx context.Context) error { return c.followed.setEndpoints(ctx, at("n1-a")) }, c.askDrained, "n1-a", false},
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

// clients are those of a world that keep their source port, by what they ask: each address of the followed Service, in each
// family; the cluster IPs of the Service whose pod terminates, and of the one that is deleted.
type clients struct{ follow, drain, deleted map[string]*nstest.Datagrams }

// start has the clients of a world ask from now on.
func (c *changes) start(t *testing.T, w *world) clients {
	t.Helper()
	port := uint16(5060)
	ask := func(targets ...target) map[string]*nstest.Datagrams {
		all := map[string]*nstest.Datagrams{}
		for _, to := range targets {
			for _, f := range nstest.Families {
				port++
				all[fmt.Sprintf("%s, %s", to.name, to.in(f))] = w.SendDatagrams(t, "client", port, to.in(f))
			}
		}
		return all
	}
	return clients{
		follow: ask(append(c.followed.fromOutside(), c.followed.clusterIP)...),
		drain:  ask(c.draining.clusterIP), deleted: ask(c.deleted.clusterIP),
	}
}

// reach tells that clients get to a pod, or with "" that they are refused. Once the rules are there, flows are to follow
// within a second.
func reach(t *testing.T, w *world, clients map[string]*nstest.Datagrams, pod, why string) {
	t.Helper()
	soon := time.Second
	if w.proxy&kubeProxy != 0 {
		soon = patience
	}
	for to, d := range clients {
		if pod == "" {
			require.NoError(t, d.Silent(soon), "%s: %s", to, why)
		} else {
			require.NoError(t, d.AnsweredBy(pod, soon), "%s: %s", to, why)
		}
	}
}

// check tells where the clients are after a step, when those that follow were at a pod before.
func (all clients) check(t *testing.T, w *world, s step, before string) {
	t.Helper()
	followed, deleted, why := s.followed, "n1-a", "a flow follows"
	if s.deleted {
		deleted = ""
	}
	if w.proxy&kubeProxy != 0 { // what has nowhere to go
		why = string(keepsFlows)
		deleted = "n1-a"
		if followed == "" {
			followed = before
		}
	}
	reach(t, w, all.follow, followed, why)
	reach(t, w, all.deleted, deleted, why)
	reach(t, w, all.drain, "n1-a", "a flow stays with its pod until that has ended")
}

// checkSCTP does the same with associations that are set up again and again between the same ports. kube-proxy leaves them as
// they are until they expire.
func (c *changes) checkSCTP(t *testing.T, w *world, s step) {
	t.Helper()
	if w.proxy&kubeProxy != 0 || nstest.SCTPOfKernel() {
		return
	}
	for _, f := range nstest.Families {
		p := netlab.Probe{Network: nstest.SCTP, To: c.followed.clusterIP.in(f), From: netip.AddrPortFrom(netip.Addr{}, 5060)}
		var a netlab.Answer
		var err error
		require.Eventually(t, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), nstest.Silence)
			defer cancel()
			a, err = w.Ask(ctx, "client", p)
			return a.Host == s.followed && (err == nil) == (s.followed != "")
		}, patience, time.Millisecond, "%s: %v, %v", p.To, a, err)
	}
}

func (c *changes) run(t *testing.T, r *session) {
	t.Helper()
	flows := map[*world]clients{}
	for _, w := range r.worlds {
		flows[w] = c.start(t, w)
	}
	r.each(t, "clients start", func(t *testing.T, w *world) { flows[w].check(t, w, step{followed: "n1-a"}, "") })
	before := ""
	for _, step := range c.steps() {
		require.NoError(t, step.change(t.Context()), step.name)
		r.settle(t)
		asked := &table{kind: step.name}
		step.ask(asked)
		r.each(t, step.name, func(t *testing.T, w *world) {
			flows[w].check(t, w, step, before)
			c.checkSCTP(t, w, step)
			w.checkAll(t, asked.rows)
		})
		before = step.followed
	}
}
