// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// inUse says whether a table is there, or otherwise when that is not known. Asking iptables-legacy would make it.
func (t *tool) inUse(table table, otherwise bool) bool {
	if t.flavor != Legacy {
		return true
	}
	content, err := os.ReadFile([...]string{"/proc/thread-self/net/ip_tables_names", "/proc/thread-self/net/ip6_tables_names"}[t.family])
	if err != nil {
		return otherwise && !errors.Is(err, os.ErrNotExist) // it may be root's
	}
	for name := range strings.Lines(string(content)) {
		if strings.TrimSpace(name) == table.String() {
			return true
		}
	}
	return false
}

// fingerprintLen is how many numbers fingerprint returns.
func (t *tool) fingerprintLen() int {
	if t.flavor == NFT {
		return 1
	}
	return len(tables)
}

// fingerprint is what the kernel can tell of the tables without listing them: with nft the generation of all rules,
// which counts the transactions; otherwise the number of entries of each table and its size in bytes.
func (t *tool) fingerprint() ([]uint64, error) {
	if t.flavor == NFT {
		generation, err := generation()
		return []uint64{generation}, err
	}
	var numbers []uint64
	for _, table := range tables {
		number, err := tableInfo(t.family, table.String())
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

// generation asks nf_tables for its generation.
func generation() (uint64, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	answers, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("nf_tables: generation: %w", err)
	}
	for _, answer := range answers {
		if len(answer) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(answer[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("nf_tables: generation: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_GEN_ID && len(a.Value) == 4 {
				return uint64(binary.BigEndian.Uint32(a.Value)), nil
			}
		}
	}
	return 0, errors.New("nf_tables: the kernel told no generation")
}

// getInfo is IPT_SO_GET_INFO, and IP6T_SO_GET_INFO, of the kernel's interface.
const getInfo = 64

// info is struct ipt_getinfo, and struct ip6t_getinfo, which are the same.
type info struct {
	Name       [32]byte
	ValidHooks uint32
	HookEntry  [5]uint32
	Underflow  [5]uint32
	NumEntries uint32
	Size       uint32
}

// tableInfo is the number of entries and the size of a legacy table.
func tableInfo(f family, table string) (uint64, error) {
	domain, level := unix.AF_INET, unix.SOL_IP
	if f == v6 {
		domain, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("%s tables: %w", f, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var i info
	copy(i.Name[:len(i.Name)-1], table)
	size := uint32(unsafe.Sizeof(i))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), getInfo,
		uintptr(unsafe.Pointer(&i)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("%s table %s: %w", f, table, errno)
	}
	return uint64(i.NumEntries)<<32 | uint64(i.Size), nil
}
