// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"maps"
	"net/netip"
)

// nodeAddresses is where the addresses of this node are known from: the kernel, or a test.
type nodeAddresses interface {
	// Watch calls told with the addresses of this node: once before it returns, then whenever they may differ, from
	// one goroutine, until ctx ends. An error says that they cannot be known.
	Watch(ctx context.Context, told func(map[netip.Addr]bool)) error
}

// distinct leaves out the calls that bring nothing new.
func distinct(told func(map[netip.Addr]bool)) func(map[netip.Addr]bool) {
	var last map[netip.Addr]bool
	return func(addrs map[netip.Addr]bool) {
		if last != nil && maps.Equal(last, addrs) {
			return
		}
		last = addrs
		told(addrs)
	}
}
