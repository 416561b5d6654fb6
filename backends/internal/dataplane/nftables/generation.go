// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// generation is the number that the kernel gives to the state of all its nftables rules: every transaction, whoever
// makes it, counts it up. 0 is unknown.
func generation(c *netlink.Conn) uint32 {
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: make([]byte, 4), // nfgenmsg: any family
	})
	if err != nil || len(replies) == 0 || len(replies[0].Data) < 4 {
		return 0
	}
	ad, err := netlink.NewAttributeDecoder(replies[0].Data[4:])
	if err != nil {
		return 0
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() == unix.NFTA_GEN_ID {
			return ad.Uint32()
		}
	}
	return 0
}
