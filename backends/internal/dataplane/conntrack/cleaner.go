// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Cleaner removes flows. It works in the network namespace of the thread that calls it. The zero value is ready.
type Cleaner struct {
	// ResetTCP removes flows of TCP to targets that are gone, too, where that makes clients fail at once: see the package.
	ResetTCP bool
	// NodePortCIDRs are those of [dataplane.Options]: flows to other addresses are none of a node port.
	NodePortCIDRs []netip.Prefix
	// OwnConnMark is a bit of the mark of the flows that we redirected and nobody else did, or 0. CleanAll knows by it
	// flows to frontends that were removed while nobody looked. Two backends on a node with the same
	// [dataplane.Options.ConnMark] must leave it 0: neither could tell the other's flows from its own old ones.
	OwnConnMark uint32
}

// Clean removes the flows that changes made wrong, and tells how many. Call it after the kernel has the changes, or new
// flows go the old way.
func (c Cleaner) Clean(ctx context.Context, changes []dataplane.Change) (int, error) {
	return c.clean(ctx, staleBy(changes, rule{tcp: c.ResetTCP}))
}

// CleanAll removes the flows to any of the services that do not go where they should: after a start, whose
// predecessor may have left some.
func (c Cleaner) CleanAll(ctx context.Context, services []*dataplane.Service) (int, error) {
	changes := make([]dataplane.Change, len(services))
	for i, s := range services {
		changes[i].New = s
	}
	return c.clean(ctx, staleBy(changes, rule{tcp: c.ResetTCP, restart: true, mark: c.OwnConnMark}))
}

func (c Cleaner) clean(ctx context.Context, s *stale) (total int, err error) {
	if s == nil {
		return 0, nil
	}
	if s.own, err = c.nodePortAddresses(); err != nil {
		return 0, fmt.Errorf("conntrack: addresses of this node: %w", err)
	}
	socket, err := open()
	if err != nil {
		return 0, fmt.Errorf("conntrack: %w", err)
	}
	defer func() { err = errors.Join(err, socket.close()) }()
	for _, q := range s.queries() {
		n, failure := socket.clean(ctx, s, q)
		total += n
		if failure != nil {
			err = errors.Join(err, fmt.Errorf("conntrack: %w", failure))
		}
	}
	return total, err
}

// attempts at a listing that the kernel says changed under it.
const attempts = 3

func (s *socket) clean(ctx context.Context, stale *stale, q query) (total int, err error) {
	for range attempts {
		n, err := s.cleanOnce(ctx, stale, q)
		total += n
		if !errors.Is(err, errInterrupted) {
			return total, err
		}
	}
	return total, fmt.Errorf("%d attempts: %w", attempts, errInterrupted)
}

// cleanOnce lists before it removes: of all flows only those are kept in memory that are wrong.
func (s *socket) cleanOnce(ctx context.Context, stale *stale, q query) (int, error) {
	var wrong []entry
	listing := s.list(ctx, q, func(attributes []byte) {
		if f, ok := parse(attributes); ok && stale.wrong(&f) {
			wrong = append(wrong, entry{flow: f, family: q.family(), identity: bytes.Clone(identity(attributes))})
		}
	})
	removed := 0
	for i := range wrong {
		was, err := s.remove(&wrong[i])
		if err != nil {
			return removed, errors.Join(listing, err)
		}
		if was {
			removed++
		}
	}
	return removed, listing
}

// nodePortAddresses tells the addresses of this node that node ports are served at.
func (c Cleaner) nodePortAddresses() (func(netip.Addr) bool, error) {
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
	return func(a netip.Addr) bool {
		if len(c.NodePortCIDRs) == 0 {
			return own[a] && !a.IsLoopback()
		}
		return own[a] && slices.ContainsFunc(c.NodePortCIDRs, func(p netip.Prefix) bool { return p.Contains(a) })
	}, nil
}
