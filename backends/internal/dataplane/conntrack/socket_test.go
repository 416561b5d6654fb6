// SPDX-License-Identifier: Apache-2.0

//go:build linux

package conntrack

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// message is one of the kernel's.
func message(kind, flags uint16, sequence uint32, body []byte) []byte {
	order := binary.NativeEndian
	b := order.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = order.AppendUint16(b, kind)
	b = order.AppendUint16(b, flags)
	b = order.AppendUint32(b, sequence)
	b = order.AppendUint32(b, 0)
	b = append(b, body...)
	return append(b, make([]byte, aligned(len(body))-len(body))...)
}

func TestRead(t *testing.T) {
	const entry, ours = unix.NFNL_SUBSYS_CTNETLINK << 8, 7
	join := func(messages ...[]byte) (b []byte) {
		for _, m := range messages {
			b = append(b, m...)
		}
		return b
	}
	number := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }
	one, done := message(entry, unix.NLM_F_MULTI, ours, []byte("hdr.1")), message(unix.NLMSG_DONE, unix.NLM_F_MULTI, ours, number(0))
	for _, test := range []struct {
		name    string
		b       []byte
		entries []string
		end     bool
		err     error
	}{
		{"more to come", join(one, one), []string{"1", "1"}, false, nil},
		{"the end", join(one, done), []string{"1"}, true, nil},
		{"another question's answer", join(message(entry, 0, ours-1, []byte("hdr.2")), message(unix.NLMSG_DONE, 0, ours-1, number(0)), one), []string{"1"}, false, nil},
		{"interrupted", join(message(entry, unix.NLM_F_DUMP_INTR, ours, []byte("hdr.2")), one), []string{"2", "1"}, false, errInterrupted},
		{"interrupted at the end", join(one, message(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, ours, number(0))), []string{"1"}, true, errInterrupted},
		{"acknowledged", message(unix.NLMSG_ERROR, 0, ours, number(0)), nil, true, nil},
		{"refused", message(unix.NLMSG_ERROR, 0, ours, number(-int32(unix.EPERM))), nil, true, unix.EPERM},
		{"listing failed", join(one, message(unix.NLMSG_DONE, 0, ours, number(-int32(unix.ENOMEM)))), []string{"1"}, true, unix.ENOMEM},
	} {
		var got []string
		end, err := read(test.b, ours, func(b []byte) { got = append(got, string(b)) })
		require.Equal(t, test.end, end, test.name)
		require.Equal(t, test.entries, got, test.name)
		require.ErrorIs(t, err, test.err, test.name)
	}
	_, err := read(one[:len(one)-4], ours, func([]byte) {})
	require.ErrorContains(t, err, "a message of 21 bytes in 20")
}

// FuzzParse: whatever comes is read within its bounds.
func FuzzParse(f *testing.F) {
	f.Add(made{protocol: 17, from: clientAddress, to: clientAddress, by: podA, zone: 3}.attributes())
	f.Add([]byte{4, 0, 1, 0, 3, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, ok := parse(b); ok {
			require.True(t, got.to.Addr().IsValid() && got.by.IsValid())
			// Without a tuple the kernel would take a removal for one of the whole table.
			require.Greater(t, len(identity(b)), unix.SizeofNlAttr)
		}
		_, _ = read(b, 0, func(b []byte) { parse(b) })
	})
}
