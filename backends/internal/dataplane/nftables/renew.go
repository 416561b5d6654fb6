// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// clear removes all that is there, but keeps those of the wanted affinity sets that are, with what they remember. Names
// of affinity sets hold the hash of what they are for, so what has the name is the same.
func (w *Writer) clear(t *transaction, wanted []affinitySet) (kept map[string]bool, err error) {
	names := make(map[string]bool, len(wanted))
	for _, s := range wanted {
		names[s.name] = true
	}
	sets, chains, err := w.there(len(names) > 0)
	if err != nil {
		return nil, fmt.Errorf("reading what is there: %w", err)
	}
	kept = map[string]bool{}
	for _, s := range sets {
		if names[s] {
			kept[s] = true
		}
	}
	if len(kept) == 0 {
		t.removeTable()
		return nil, nil
	}
	t.flushRules()
	for _, s := range sets {
		if !kept[s] {
			t.delSet(s)
		}
	}
	for _, c := range chains {
		t.delChain(c)
	}
	return kept, nil
}

// there are the named sets and the chains of the table; none if the table is not there, or is not just of these.
func (w *Writer) there(look bool) (sets, chains []string, err error) {
	if !look {
		return nil, nil, nil
	}
	var table attributes
	table.text(unix.NFTA_TABLE_NAME, w.opts.Owner)
	answers, err := ask(w.conn, unix.NFT_MSG_GETTABLE, 0, table)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil, nil
	}
	if err != nil || len(answers) == 0 {
		return nil, nil, err
	}
	all, err := ask(w.conn, unix.NFT_MSG_GETSET, netlink.Dump, table)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range all {
		if number(find(a, unix.NFTA_SET_FLAGS))&unix.NFT_SET_ANONYMOUS == 0 { // those go with their rules
			sets = append(sets, nameOf(a, unix.NFTA_SET_NAME))
		}
	}
	found, err := ask(w.conn, unix.NFT_MSG_GETCHAIN, netlink.Dump, nil)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range found {
		if nameOf(a, unix.NFTA_CHAIN_TABLE) == w.opts.Owner {
			chains = append(chains, nameOf(a, unix.NFTA_CHAIN_NAME))
		}
	}
	only := number(find(answers[0], unix.NFTA_TABLE_USE)) == uint32(len(sets)+len(chains))
	if !only || number(find(answers[0], unix.NFTA_TABLE_FLAGS)) != 0 {
		return nil, nil, nil
	}
	return sets, chains, nil
}
