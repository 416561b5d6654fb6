// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// state is what our last transaction left.
type state struct {
	size
	elements map[string]int // by shared set
	// generation is when it was last known to be there; 0: it is not known.
	generation uint32
	// rulesSum is of the rules as the kernel has them; 0: not known.
	rulesSum uint64
}

// committed counts what was written.
func (w *Writer) committed(d *delta, add, del elementLists) {
	w.state.size = w.state.plus(d.size)
	for set, l := range add {
		w.state.elements[set] += l.count
	}
	for set, l := range del {
		w.state.elements[set] -= l.count
	}
	if len(d.newChains)+len(d.rules)+len(d.delChains) > 0 {
		w.state.rulesSum = 0
	}
}

// advance follows the generation over a transaction of ours. If somebody else made one since it was last known, or at the
// same time, the next Check looks closer.
func (w *Writer) advance(before uint32) {
	now := generation(w.conn)
	if before == 0 || before != w.state.generation || now != before+1 {
		now = 0
	}
	w.state.generation = now
}

// Check is [dataplane.Writer]'s. Nothing has to be looked at while nobody changed any nftables rule. After that there must
// be as many chains, sets and rules as there were, and, where the kernel tells, elements of each set (since Linux 6.16);
// and the rules must read as they did when nobody else had changed any yet.
func (w *Writer) Check(ctx context.Context) (bool, error) {
	if err := w.open(); err != nil {
		return false, err
	}
	w.passForward(ctx)
	const attempts = 3
	for range attempts {
		now := generation(w.conn)
		if now != 0 && now == w.state.generation && w.state.rulesSum != 0 {
			return true, nil
		}
		intact, sum, err := w.look()
		if err != nil {
			return false, fmt.Errorf("nftables: checking table inet %s: %w", w.opts.Owner, err)
		}
		if generation(w.conn) != now { // what was seen may be half of before and half of after
			continue
		}
		switch known := now != 0 && now == w.state.generation; {
		case !known && (!intact || w.state.rulesSum != 0 && w.state.rulesSum != sum):
			return false, nil
		default:
			w.state.generation, w.state.rulesSum = now, sum
			return true, nil
		}
	}
	return true, nil // others change rules all the time; the next Check will tell
}

// look at the table. It may not be there.
func (w *Writer) look() (intact bool, sum uint64, err error) {
	var table attributes
	table.text(unix.NFTA_TABLE_NAME, w.opts.Owner)
	answers, err := ask(w.conn, unix.NFT_MSG_GETTABLE, 0, table)
	if errors.Is(err, unix.ENOENT) {
		return false, 0, nil
	}
	if err != nil || len(answers) == 0 {
		return false, 0, err
	}
	if number(find(answers[0], unix.NFTA_TABLE_USE)) != uint32(w.state.objects) || number(find(answers[0], unix.NFTA_TABLE_FLAGS)) != 0 {
		return false, 0, nil
	}
	// The table is told by the same attribute in questions about sets and rules.
	sets, err := ask(w.conn, unix.NFT_MSG_GETSET, netlink.Dump, table)
	if err != nil || !w.state.sets(sets) {
		return false, 0, err
	}
	rules, err := ask(w.conn, unix.NFT_MSG_GETRULE, netlink.Dump, table)
	if err != nil || len(rules) != w.state.rules {
		return false, 0, err
	}
	return true, sumOf(rules), nil
}

// setCount is NFTA_SET_COUNT.
const setCount = 20

// sets tells whether there are as many elements and affinity sets as there should be. What is in affinity sets is the
// kernel's.
func (s *state) sets(answers [][]byte) bool {
	affinity := 0
	for _, a := range answers {
		name := nameOf(a, unix.NFTA_SET_NAME)
		if strings.HasPrefix(name, affinityPrefix) {
			affinity++
		}
		want, shared := s.elements[name]
		if count := find(a, setCount); shared && count != nil && number(count) != uint32(want) {
			return false
		}
	}
	return affinity == s.affinity
}

func sumOf(rules [][]byte) uint64 {
	var sum maphash.Hash
	sum.SetSeed(seed)
	for _, r := range rules {
		_, _ = sum.Write(r)
	}
	return max(sum.Sum64(), 1)
}

var seed = maphash.MakeSeed()

// number and nameOf are what attributes say; nothing where there is none.
func number(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func nameOf(answer []byte, typ uint16) string {
	return strings.TrimSuffix(string(find(answer, typ)), "\x00")
}
