// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// TestDropInvalid sends a TCP segment without any flag, which conntrack calls invalid whatever the state of
// the connection, and looks whether the pod gets it.
func TestDropInvalid(t *testing.T) {
	t.Parallel()
	forEach(t, 1, func(t *testing.T, l *Lab, fl flavour) {
		for _, drop := range []bool{false, true} {
			fl.with = func(o *dataplane.Options) { o.DropInvalid = drop }
			w := fl.writer(t, l)
			require.NoError(t, w.Replace(t.Context(), nil))
			for _, f := range Families {
				require.Equal(t, !drop, l.passesInvalid(t, f), "%s, drop: %v", f.Name(""), drop)
			}
		}
	})
}

// passesInvalid sends it before a datagram, and both go the same way: when the datagram was answered it is there or lost.
func (l *Lab) passesInvalid(t *testing.T, f Family) bool {
	t.Helper()
	network := map[bool]string{false: "ip4:6", true: "ip6:6"}[f.V6]
	pod := f.Addr("n1-a")
	pc, err := l.Host("n1-a").ListenPacket(network, pod.String())
	require.NoError(t, err)
	defer func() { require.NoError(t, pc.Close()) }()
	client, err := l.Host("client").ListenPacket(network, f.Addr("client").String())
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()

	segment := make([]byte, 20)
	segment[0], segment[2], segment[12] = 0x7e, 0x7e, 5<<4 // ports; five words of header, no flags
	_, err = client.WriteTo(segment, &net.IPAddr{IP: pod.AsSlice()})
	require.NoError(t, err)
	l.Check(t, []Check{ask("client", UDP, pod, Port, by(f.Addr("client"), "n1-a"))})

	require.NoError(t, pc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	for buf := make([]byte, 1500); ; {
		n, from, err := pc.ReadFrom(buf)
		if err != nil {
			return false
		}
		source, _ := netip.AddrFromSlice(from.(*net.IPAddr).IP)
		if source.Unmap() == f.Addr("client") && n >= len(segment) && buf[0] == 0x7e {
			return true
		}
	}
}
