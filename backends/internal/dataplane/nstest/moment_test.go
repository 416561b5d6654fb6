// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// TestNoMomentWithoutService opens connection after connection while the number of targets goes up and down. Whatever
// of the old and of the new a packet meets, it finds a target.
func TestNoMomentWithoutService(t *testing.T) {
	t.Parallel()
	pods := []string{"n1-a", "n1-b", "n1-c", "n1-d", "n1-e", "n1-f", "n1-g"}
	forEach(t, len(pods), func(t *testing.T, l *Lab, fl flavour) {
		w := fl.writer(t, l)
		services := map[Family]*dataplane.Service{}
		for _, f := range Families {
			services[f] = f.service80("web", dataplane.LoadBalancerIP, f.VIP(1), pods...)
		}
		require.NoError(t, w.Replace(t.Context(), []*dataplane.Service{services[Families[0]], services[Families[1]]}))

		const rounds, questions = 20, 100
		var asked atomic.Int32
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() { failed <- l.askOn(ctx, "client", &asked) }()
		for round := 0; ctx.Err() == nil && len(failed) == 0; round++ {
			if round >= rounds && asked.Load() >= questions {
				stop()
			}
			n := 1 + (round*5)%len(pods) // 1, 6, 4, 2, 7, 5, 3
			for _, f := range Families {
				next := f.service80("web", dataplane.LoadBalancerIP, f.VIP(1), pods[len(pods)-n:]...)
				require.NoError(t, w.Apply(t.Context(), []dataplane.Change{{Old: services[f], New: next}}))
				services[f] = next
			}
		}
		stop()
		require.NoError(t, <-failed, "after %d questions", asked.Load())
	})
}

// askOn opens connections in both families until ctx ends, and tells what went wrong first. A packet that was lost is known by
// the kernel's having sent it again, however slow the machine is.
func (l *Lab) askOn(ctx context.Context, from string, asked *atomic.Int32) error {
	for ctx.Err() == nil {
		for _, f := range Families {
			to := netip.AddrPortFrom(f.VIP(1), 80)
			conn, err := l.Host(from).Dial(context.WithoutCancel(ctx), TCP, to.String())
			if err != nil {
				return err
			}
			again, err := resent(conn)
			_ = conn.Close() // it has told all that it was for
			if err != nil {
				return err
			}
			if again > 0 {
				return fmt.Errorf("%s: the first packet was sent again %d times", to, again)
			}
			asked.Add(1)
		}
	}
	return nil
}

// resent is how many packets of a connection the kernel has sent again.
func resent(conn net.Conn) (uint32, error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var info *unix.TCPInfo
	if ctlErr := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO) }); ctlErr != nil {
		return 0, ctlErr
	}
	if err != nil {
		return 0, fmt.Errorf("TCP_INFO: %w", err)
	}
	return info.Total_retrans, nil
}
