// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"

	nft "github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The library encodes, and we send: it asks for an answer to every message, and for a copy of every rule, which is most of
// the time of a large transaction; and it says that the keys of anonymous maps are in network order, which makes nft
// show the numbers of numgen backwards. Its hook for tests is the one way to see what it encoded.

// encoder is a library connection that sends nothing. What it would send is handed to take.
func encoder(take func([]netlink.Message)) (*nft.Conn, error) {
	return nft.New(nft.WithTestDial(func(req []netlink.Message) ([]netlink.Message, error) {
		take(req)
		return nil, errCaptured
	}))
}

// errCaptured is of a kind that the library takes for the end, instead of waiting for each of its answers.
var errCaptured = fmt.Errorf("not sent: %w", unix.ENOBUFS)

// bufferSize is the limit of the socket's buffers, which are taken as needed: a transaction is one datagram.
const bufferSize = 512 << 20

// dial opens a socket to send with. Opening one for each change would cost ten times the change: when one is closed, the
// kernel waits for what is left of earlier transactions.
func dial() (*netlink.Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	if err := errors.Join(c.SetReadBuffer(bufferSize), c.SetWriteBuffer(bufferSize)); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("netlink buffers: %w", err)
	}
	return c, nil
}

// send makes a batch happen, all of it or nothing. After an error the socket is not to be used any more.
func send(c *netlink.Conn, batch []netlink.Message) error {
	for i := range batch {
		h := &batch[i].Header
		h.Sequence, h.PID, h.Length = 0, 0, 0
		h.Flags &^= netlink.Acknowledge
		if h.Type == newRule {
			h.Flags &^= unix.NLM_F_ECHO
		}
		if h.Type == newSet {
			data, err := numbersInHostOrder(batch[i].Data)
			if err != nil {
				return err
			}
			batch[i].Data = data
		}
	}
	// One answer, to the last message before the end of the batch. An error, wherever it is, comes before it.
	batch[len(batch)-2].Header.Flags |= netlink.Acknowledge

	if _, err := c.SendMessages(batch); err != nil {
		return fmt.Errorf("sending %d messages: %w", len(batch), err)
	}
	_, err := c.Receive()
	return err
}

const (
	newRule = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE)
	newSet  = netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSET)
)

// numbersInHostOrder changes the note about the order of bytes that nft goes by, in a message that makes a set of numbers.
func numbersInHostOrder(data []byte) ([]byte, error) {
	const header = 4 // nfgenmsg
	attrs, err := netlink.UnmarshalAttributes(data[header:])
	if err != nil {
		return nil, err
	}
	number := false
	for _, a := range attrs {
		number = number || a.Type == unix.NFTA_SET_KEY_TYPE && a.Data[3] == byte(nft.TypeInteger.GetNFTMagic())
	}
	if !number {
		return data, nil
	}
	for i := range attrs {
		if attrs[i].Type == unix.NFTA_SET_USERDATA {
			attrs[i].Data = userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, 1)
		}
	}
	changed, err := netlink.MarshalAttributes(attrs)
	if err != nil {
		return nil, err
	}
	return append(data[:header:header], changed...), nil
}
