// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

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
func send(c *netlink.Conn, batch []byte) error {
	if err := post(c, batch); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}

// post sends a batch, and does not wait for answers.
func post(c *netlink.Conn, batch []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Write(func(fd uintptr) bool {
		sent = unix.Sendto(int(fd), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(sent, unix.EAGAIN)
	})
	if err = errors.Join(err, sent); err != nil {
		return fmt.Errorf("sending %d bytes: %w", len(batch), err)
	}
	return nil
}

// ask the kernel for something of a table of our family, or with dump for all of a kind. Answers are attributes.
func ask(c *netlink.Conn, typ uint16, flags netlink.HeaderFlags, question attributes) ([][]byte, error) {
	return askFamily(c, unix.NFPROTO_INET, typ, flags, question)
}

func askFamily(c *netlink.Conn, family byte, typ uint16, flags netlink.HeaderFlags, question attributes) ([][]byte, error) {
	replies, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | typ), Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, question...),
	})
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, r := range replies {
		if len(r.Data) >= 4 {
			out = append(out, r.Data[4:])
		}
	}
	return out, nil
}

// find one attribute among an answer's.
func find(answer []byte, typ uint16) []byte {
	d, err := netlink.NewAttributeDecoder(answer)
	if err != nil {
		return nil
	}
	for d.Next() {
		if d.Type() == typ {
			return d.Bytes()
		}
	}
	return nil
}

// generation is the number that the kernel gives to the state of all its nftables rules: every transaction, whoever
// makes it, counts it up. 0 is unknown.
func generation(c *netlink.Conn) uint32 {
	answers, err := ask(c, unix.NFT_MSG_GETGEN, 0, nil)
	if err != nil || len(answers) == 0 {
		return 0
	}
	return number(find(answers[0], unix.NFTA_GEN_ID))
}
