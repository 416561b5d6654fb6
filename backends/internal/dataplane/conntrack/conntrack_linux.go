// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Cleaner removes flows. It works in the network namespace of the thread that calls it. The zero value is ready.
type Cleaner struct{}

// Clean removes the flows that changes made wrong, and tells how many. Call it after the kernel has the changes, or new
// flows go the old way.
func (Cleaner) Clean(ctx context.Context, changes []dataplane.Change) (int, error) {
	return clean(ctx, staleBy(changes, false))
}

// CleanAll removes the flows to any of the services that do not go where they should: after a start, whose
// predecessor may have left some.
func (Cleaner) CleanAll(ctx context.Context, services []*dataplane.Service) (int, error) {
	changes := make([]dataplane.Change, len(services))
	for i, s := range services {
		changes[i].New = s
	}
	return clean(ctx, staleBy(changes, true))
}

func clean(ctx context.Context, s *stale) (int, error) {
	if s == nil {
		return 0, nil
	}
	total := 0
	var errs []error
	for _, family := range []struct {
		is bool
		id netlink.InetFamily
	}{{s.v4, netlink.FAMILY_V4}, {s.v6, netlink.FAMILY_V6}} {
		if !family.is {
			continue
		}
		n, err := cleanFamily(ctx, s, family.id)
		total += n
		if err != nil {
			errs = append(errs, fmt.Errorf("conntrack: removing flows: %w", err))
		}
	}
	return total, errors.Join(errs...)
}

// attempts at a listing that the kernel says changed under it.
const attempts = 3

func cleanFamily(ctx context.Context, s *stale, family netlink.InetFamily) (int, error) {
	own, err := ownAddresses()
	if err != nil {
		return 0, err
	}
	total := 0
	for range attempts {
		var n uint
		n, err = netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter{s, own})
		total += int(n)
		if !errors.Is(err, netlink.ErrDumpInterrupted) || ctx.Err() != nil {
			break
		}
	}
	return total, err
}

func ownAddresses() (func(netip.Addr) bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	own := map[netip.Addr]bool{}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr()] = true
		}
	}
	return func(a netip.Addr) bool { return own[a] }, nil
}

// filter is how the library asks about each flow.
type filter struct {
	*stale
	own func(netip.Addr) bool
}

// MatchConntrackFlow is netlink.CustomConntrackFilter's.
func (f filter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool {
	to, ok := netip.AddrFromSlice(c.Forward.DstIP)
	by, ok2 := netip.AddrFromSlice(c.Reverse.SrcIP)
	if !ok || !ok2 {
		return false
	}
	return f.wrong(&flow{
		protocol: c.Forward.Protocol,
		to:       netip.AddrPortFrom(to.Unmap(), c.Forward.DstPort),
		by:       by.Unmap(), byPort: c.Reverse.SrcPort,
	}, f.own)
}
