// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"sigs.k8s.io/kpng/internal/netlab"
)

func TestMain(m *testing.M) {
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

// patience is for what takes an instant, on any machine.
const patience = time.Minute

// TestKernelAddresses: addresses that come and go are told of.
func TestKernelAddresses(t *testing.T) {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	lab := netlab.ForTest(t)
	host := lab.Host("node")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := make(chan map[netip.Addr]bool, 10)
	require.NoError(t, host.Do(func() error {
		return kernelAddresses{}.Watch(ctx, func(addrs map[netip.Addr]bool) { told <- addrs })
	}))
	next := func() map[netip.Addr]bool {
		select {
		case addrs := <-told:
			return addrs
		case <-time.After(patience):
			require.FailNow(t, "not told")
			return nil
		}
	}
	require.True(t, next()[netip.MustParseAddr("127.0.0.1")], "at once")

	lo, err := host.Netlink().LinkByName("lo")
	require.NoError(t, err)
	for _, text := range []string{"192.0.2.1/32", "2001:db8::1/128"} {
		addr, err := netlink.ParseAddr(text)
		require.NoError(t, err)
		ip := netip.MustParsePrefix(text).Addr()
		require.NoError(t, host.Netlink().AddrAdd(lo, addr))
		require.True(t, next()[ip], text)
		require.NoError(t, host.Netlink().AddrDel(lo, addr))
		require.False(t, next()[ip], text)
	}
}
