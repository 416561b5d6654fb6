// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
	"sigs.k8s.io/kpng/internal/netlab"
)

// These tests have the nftables writer program a kernel, in a namespace.

const (
	vipPort = 80
	podPort = 8080
)

// hosted is a writer, and what cleans flows, on a host of the lab.
type hosted struct {
	*nftables.Writer
	host *netlab.Host
}

func (h hosted) Replace(ctx context.Context, services []*dataplane.Service) error {
	return h.host.Do(func() error { return h.Writer.Replace(ctx, services) })
}

func (h hosted) Apply(ctx context.Context, changes []dataplane.Change) error {
	return h.host.Do(func() error { return h.Writer.Apply(ctx, changes) })
}

func (h hosted) Check(ctx context.Context) (intact bool, err error) {
	err = h.host.Do(func() (err error) { intact, err = h.Writer.Check(ctx); return err })
	return intact, err
}

func (h hosted) Refused(ctx context.Context, services []*dataplane.Service) (names []string, err error) {
	err = h.host.Do(func() (err error) { names, err = h.Writer.Refused(ctx, services); return err })
	return names, err
}

func (h hosted) Clean(ctx context.Context, changes []dataplane.Change) (n int, err error) {
	err = h.host.Do(func() (err error) { n, err = conntrack.Cleaner{}.Clean(ctx, changes); return err })
	return n, err
}

func (h hosted) CleanAll(ctx context.Context, services []*dataplane.Service, complete bool) (n int, err error) {
	err = h.host.Do(func() (err error) { n, err = cleaner{}.CleanAll(ctx, services, complete); return err })
	return n, err
}

func on(t *testing.T, host *netlab.Host) hosted {
	w, err := nftables.New(dataplane.Options{Owner: "kpng-test"})
	require.NoError(t, err)
	t.Cleanup(w.Close)
	return hosted{w, host}
}

// site is a client, and a node with a pod that serves.
type site struct {
	client, node *netlab.Host
	pod          netip.Addr
}

func newSite(t *testing.T) *site {
	c := netlab.ForTest(t).Cluster(netlab.NodeSpec{Name: "n1", Pods: []string{"n1-a"}})
	node, pod := c.Nodes[0], c.Nodes[0].Pods[0]
	pod.Serve(podPort)
	c.Client.Route(netip.MustParsePrefix("10.96.0.0/16"), node.Addr(false), "")
	return &site{c.Client, node.Host, pod.Addr(false)}
}

func vip(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}) }

// services are so many, that have the pod as their target.
func (s *site) services(n int) (changes []dataplane.Change) {
	for i := range n {
		changes = append(changes, dataplane.Change{New: &dataplane.Service{
			Name: fmt.Sprintf("ns/web-%03d", i),
			Frontends: []dataplane.Frontend{{
				Kind: dataplane.ClusterIP, IP: vip(i), Protocol: dataplane.TCP, Port: vipPort,
				Pool: dataplane.Pool{Targets: []dataplane.Target{{IP: s.pod, Port: podPort, Local: true}}},
			}},
		}})
	}
	return changes
}

// contradictory is a service that the model allows, and the kernel does not: connections of one pod would leave with
// two addresses.
func (s *site) contradictory(name string, i int) dataplane.Change {
	c := s.services(i + 1)[i]
	c.New.Name = name
	c.New.Egress = []dataplane.Egress{{Source: s.pod, IP: vip(i)}, {Source: s.pod, IP: vip(i + 1)}}
	return c
}

func (s *site) ask(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := s.client.Probe(ctx, netlab.Probe{Network: "tcp", To: netip.AddrPortFrom(vip(i), vipPort)})
	return err
}

// keepAsking connects to each of so many services in turn, until it is told to end; then it returns the first failure, and
// how often it asked.
func (s *site) keepAsking(t *testing.T, n int) (end func() (int, error)) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var asked int
	var failure error
	wg.Go(func() {
		for ; failure == nil && ctx.Err() == nil; asked++ {
			failure = s.ask(context.WithoutCancel(ctx), asked%n)
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	return func() (int, error) {
		cancel()
		wg.Wait()
		return asked, failure
	}
}

// TestKernelRefusesAtStart: beside a service that the kernel refuses, those that an earlier run wrote go on.
func TestKernelRefusesAtStart(t *testing.T) {
	const n = 100
	s := newSite(t)
	all := s.services(n)
	for _, bad := range []string{"ns/a", "ns/web-050-bad", "ns/z"} {
		t.Run(bad, func(t *testing.T) {
			refused, other := s.contradictory(bad, n), s.contradictory("ns/other", n+1)
			require.NoError(t, refused.New.Validate())
			before := on(t, s.node)
			var services []*dataplane.Service
			for _, c := range all {
				services = append(services, c.New)
			}
			require.NoError(t, before.Replace(t.Context(), services))
			asking := s.keepAsking(t, n)

			w := on(t, s.node)
			d := newDriver()
			d.start(w, w, nil)
			t.Cleanup(d.Stop)
			d.Update(append(all, refused, other), nil)
			err := d.Settle(t.Context())
			require.ErrorContains(t, err, "service "+bad+": nftables:")
			require.ErrorContains(t, err, "service ns/other: nftables:")
			asked, err := asking()
			require.NoError(t, err, "of %d connections", asked)
			require.NotZero(t, asked)
			for i := range n {
				require.NoError(t, s.ask(t.Context(), i))
			}
			require.Error(t, s.ask(t.Context(), n))

			mended := s.services(n + 1)[n]
			mended.New.Name = bad
			d.Update([]dataplane.Change{mended, {Old: other.New}}, nil)
			require.NoError(t, d.Settle(t.Context()))
			require.NoError(t, s.ask(t.Context(), n))
		})
	}
}

// TestFlushed: rules that someone else took away come back by themselves.
func TestFlushed(t *testing.T) {
	s := newSite(t)
	w := on(t, s.node)
	d := newDriver()
	d.check = 10 * time.Millisecond
	d.start(w, w, nil)
	t.Cleanup(d.Stop)
	d.Update(s.services(10), nil)
	require.NoError(t, d.Settle(t.Context()))
	require.NoError(t, s.ask(t.Context(), 9))
	for i := range 3 {
		out, err := s.node.Command(t.Context(), "nft", "flush", "ruleset").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Eventually(t, func() bool { return s.ask(t.Context(), i) == nil }, patience, 10*time.Millisecond)
		require.GreaterOrEqual(t, value(t, d.metrics.repairs), float64(i+1))
	}
	require.NoError(t, d.Settle(t.Context()))
}
