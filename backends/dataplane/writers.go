// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dataplane

import (
	"sigs.k8s.io/kpng/backends/internal/dataplane/conntrack"
	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
)

// NewNFTables returns a writer of one nftables table, over netlink: a lookup costs the same at any number of services.
// It writes nothing yet, and needs no privilege before Replace. It works in the network namespace of the thread that
// calls it first. An error is about the options.
func NewNFTables(options Options) (Writer, error) {
	w, err := nftables.New(options)
	if err != nil {
		return nil, err // not a Writer that holds a nil pointer
	}
	return w, nil
}

// Flavor is one of the two kernel interfaces that an iptables program may be built for.
type Flavor = iptables.Flavor

// The flavors. FlavorAuto is the first that works: that of the program iptables, then the other.
const (
	FlavorAuto   = iptables.Auto
	FlavorNFT    = iptables.NFT
	FlavorLegacy = iptables.Legacy
)

// NewIPTables returns a writer of chains of iptables and ip6tables, whose programs it runs: for people who want to see with
// `iptables -t nat -S` what goes where. A lookup goes through a list, so for thousands of services NewNFTables is the
// better one. It runs nothing yet. An error is about the options or the flavor.
func NewIPTables(options Options, flavor Flavor) (Writer, error) {
	w, err := iptables.New(options, flavor)
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Cleaner removes the connection-tracking entries that a change made wrong: a client that keeps its port would go on to
// a target that is gone. The zero value is ready. A [Backend] does it by itself.
type Cleaner = conntrack.Cleaner
