// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"context"
	"net"
)

// Dial connects from inside the host. The address must be an IP address and port: there is no name
// resolution in a lab. Its signature is that of net.Dialer.DialContext, for http.Transport and gRPC.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen is net.Listen inside the host, for an IP address and port. The caller closes the listener.
func (h *Host) Listen(network, address string) (ln net.Listener, err error) {
	err = h.Do(func() error {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}

// ListenPacket is net.ListenPacket inside the host, for an IP address and port. The caller closes the connection.
func (h *Host) ListenPacket(network, address string) (conn net.PacketConn, err error) {
	err = h.Do(func() error {
		conn, err = net.ListenPacket(network, address)
		return err
	})
	return conn, err
}
