// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// socketMode lets the owner and the group of a unix socket connect to it.
const socketMode = 0o660

// address is a parsed value of --listen.
type address struct {
	network string // tcp or unix
	at      string // host:port, or a path
}

func parseAddress(s string) (address, error) {
	network, at, found := strings.Cut(s, "://")
	switch {
	case !found || network != "tcp" && network != "unix":
		return address{}, fmt.Errorf("--listen %q: want tcp://HOST:PORT or unix:///PATH", s)
	case at == "":
		return address{}, fmt.Errorf("--listen %q: nothing follows %s://", s, network)
	case network == "tcp":
		if _, _, err := net.SplitHostPort(at); err != nil {
			return address{}, fmt.Errorf("--listen %q: want tcp://HOST:PORT: %w", s, err)
		}
	}
	return address{network: network, at: at}, nil
}

func (a address) String() string { return a.network + "://" + a.at }

// private says that only this machine can connect.
func (a address) private() bool {
	if a.network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(a.at)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func (a address) listen(ctx context.Context) (net.Listener, error) {
	if a.network == "unix" {
		if err := clearStaleSocket(ctx, a.at); err != nil {
			return nil, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, a.network, a.at)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", a, err)
	}
	if a.network == "unix" {
		if err := os.Chmod(a.at, socketMode); err != nil {
			return nil, errors.Join(fmt.Errorf("--listen %s: %w", a, err), l.Close())
		}
	}
	return l, nil
}

// clearStaleSocket removes a socket that nobody listens on any more. One that answers, or anything that is not a
// socket, is left alone and refused.
func clearStaleSocket(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--listen unix://%s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("--listen unix://%s: the path exists and is not a socket; remove it or choose another", path)
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("--listen unix://%s: another process is listening there; stop it or choose another path", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("--listen unix://%s: cannot tell whether the socket is in use: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("--listen unix://%s: cannot replace the stale socket: %w", path, err)
	}
	return nil
}
