// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// trafficLab is the nodes that traffic is sent through, in turns. Their proxies are ended once the kernel is
// programmed: what is measured is what they left there.
type trafficLab struct {
	nodes []*node
	paths []*path
}

func (t *trafficLab) close() {
	for _, n := range t.nodes {
		n.close()
	}
}

func (t *trafficLab) add(name string, to netip.AddrPort) (*node, error) {
	n, err := newNode()
	if err != nil {
		return nil, err
	}
	t.nodes = append(t.nodes, n)
	t.paths = append(t.paths, &path{name: name, node: n, to: to})
	return n, nil
}

// pathName is that of a proxy with so many Services.
func pathName(k kind, services int) string { return fmt.Sprintf("%s, %d Services", k, services) }

const (
	noProxy = "no proxy"
	tracked = "no proxy, connections tracked"
)

// program has each proxy program a node with so many Services.
func (t *trafficLab) program(ctx context.Context, b *bench, from source, services int) error {
	for _, k := range []kind{kubeProxy, kpng} {
		n, err := t.add(pathName(k, services), serviceAddress(0))
		if err != nil {
			return err
		}
		r, _, err := b.start(ctx, proxy{k, nftables}, n, from, services)
		if err != nil {
			return err
		}
		r.kill()
	}
	return nil
}

// plain adds the nodes without a proxy: one that only forwards, and one that tracks connections as it does so, which
// is the part of the way that no proxy of this kind can do without.
func (t *trafficLab) plain(ctx context.Context) error {
	to := netip.AddrPortFrom(endpointIP(0, 0), podPort)
	if _, err := t.add(noProxy, to); err != nil {
		return err
	}
	n, err := t.add(tracked, to)
	if err != nil {
		return err
	}
	rules := "add table ip bench; add chain ip bench forward { type filter hook forward priority 0; }; add rule ip bench forward ct state invalid drop"
	if text, err := n.router.Command(ctx, "nft", rules).CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, text)
	}
	return nil
}

// traffic sends it and prints what came of it.
func (b *bench) traffic(ctx context.Context, t *trafficLab) error {
	if err := t.plain(ctx); err != nil {
		return err
	}
	slices.SortStableFunc(t.paths, func(a, b *path) int { return rank(a) - rank(b) })
	for round := range b.rounds {
		for i := range t.paths {
			p := t.paths[(round+i)%len(t.paths)] // nobody always comes after the same
			if err := p.measure(ctx, b.trafficTime); err != nil {
				return err
			}
		}
	}
	b.Heading("Traffic through a node, nftables")
	b.Text("New TCP connections a second (%d at a time, each answered with a byte and reset) and the throughput of one connection,\n"+
		"from a client through the node to a pod, %v each, %d rounds in turns; medians. Ratios are medians of those of each round.\n"+
		"CPU is that of both ends and of the node between them, as far as the kernel counts it to the sender and the receiver.\n",
		connectors, b.trafficTime, b.rounds)
	b.Header("through", "connections a second", "of no proxy", "CPU of one", "to no proxy", "throughput", "of no proxy", "CPU of a GB", "to no proxy")
	for _, p := range t.paths {
		none := t.path(noProxy)
		b.Row(p.name, fmt.Sprintf("%.0f", median(p.rates)), percent(ratio(p.rates, none.rates)),
			fmt.Sprintf("%.0f µs", median(p.rateCPU)*1e6), percent(ratio(p.rateCPU, none.rateCPU)),
			fmt.Sprintf("%.2f GB/s", median(p.bytes)/1e9), percent(ratio(p.bytes, none.bytes)),
			fmt.Sprintf("%.0f ms", median(p.bytesCPU)*1e12), percent(ratio(p.bytesCPU, none.bytesCPU)))
	}
	b.trafficGoals(t)
	return nil
}

// rank puts the plain nodes first and sizes in order.
func rank(p *path) int {
	order := []string{noProxy, tracked, pathName(kpng, oneService), pathName(kpng, manyForTraffic), pathName(kubeProxy, oneService), pathName(kubeProxy, manyForTraffic)}
	return slices.Index(order, p.name)
}

func (b *bench) trafficGoals(t *trafficLab) {
	none, one, lots := t.path(noProxy), t.path(pathName(kpng, oneService)), t.path(pathName(kpng, manyForTraffic))
	for _, g := range []struct {
		what     string
		of, base func() []float64
		atLeast  float64
	}{
		{"connections a second with 10,000 Services, of those with one", func() []float64 { return lots.rates }, func() []float64 { return one.rates }, 0.95},
		{"throughput with 10,000 Services, of that with one", func() []float64 { return lots.bytes }, func() []float64 { return one.bytes }, 0.95},
		{"connections a second with 10,000 Services, of those without a proxy", func() []float64 { return lots.rates }, func() []float64 { return none.rates }, 0.85},
		{"throughput with 10,000 Services, of that without a proxy", func() []float64 { return lots.bytes }, func() []float64 { return none.bytes }, 0.85},
	} {
		got := ratio(g.of(), g.base())
		b.Goal(got >= g.atLeast, g.what, "at least "+percent(g.atLeast), percent(got))
	}
}

func (t *trafficLab) path(name string) *path {
	return t.paths[slices.IndexFunc(t.paths, func(p *path) bool { return p.name == name })]
}

// ratio is the median of the ratios of each round: the machine is not as fast at one moment as at another.
func ratio(of, base []float64) float64 {
	each := make([]float64, len(of))
	for i := range of {
		each[i] = of[i] / base[i]
	}
	return median(each)
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func percent(f float64) string { return fmt.Sprintf("%.0f %%", 100*f) }
