// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// passForward lets what we redirected through where FORWARD of iptables drops. A failure does not undo what was written,
// which is right: it is logged, and Check tries again.
func (w *Writer) passForward(ctx context.Context) {
	if err := w.forward.Ensure(ctx, w.nftForwardDrops); err != nil {
		klog.ErrorS(err, "The policy DROP of iptables may take what is redirected", "owner", w.opts.Owner)
	}
}

// nftForwardDrops tells the policy of FORWARD in iptables of the flavor nft.
func (w *Writer) nftForwardDrops(v6 bool) bool {
	family := byte(unix.NFPROTO_IPV4)
	if v6 {
		family = unix.NFPROTO_IPV6
	}
	var chain attributes
	chain.text(unix.NFTA_CHAIN_TABLE, "filter")
	chain.text(unix.NFTA_CHAIN_NAME, "FORWARD")
	answers, err := askFamily(w.conn, family, unix.NFT_MSG_GETCHAIN, 0, chain)
	if err != nil || len(answers) == 0 {
		return false // there is no such chain, and so no policy
	}
	policy := find(answers[0], unix.NFTA_CHAIN_POLICY)
	return policy != nil && number(policy) == policyDrop
}

// policyDrop and policyAccept are NF_DROP and NF_ACCEPT.
const (
	policyDrop   = 0
	policyAccept = 1
)
