// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// kernelAddresses asks the kernel, by netlink, in the network namespace of the calling thread.
type kernelAddresses struct{}

// rewatch is how long to wait when the subscription broke, as when more changes came than its buffer holds.
const rewatch = time.Second

// Watch implements nodeAddresses. It subscribes before it lists, so that nothing falls in between.
func (kernelAddresses) Watch(ctx context.Context, told func(map[netip.Addr]bool)) error {
	told = distinct(told)
	socket, handle, err := subscribe()
	if err != nil {
		return err
	}
	addrs, err := list(handle)
	if err != nil {
		socket.Close()
		handle.Close()
		return err
	}
	told(addrs)
	go func() {
		defer handle.Close()
		follow(ctx, socket, handle, told)
	}()
	return nil
}

func subscribe() (*nl.NetlinkSocket, *netlink.Handle, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, fmt.Errorf("listing the addresses of this node: %w", err)
	}
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		handle.Close()
		return nil, nil, fmt.Errorf("watching the addresses of this node: %w", err)
	}
	return socket, handle, nil
}

// follow lists again whenever the kernel says that an address came or went. What it says is not looked at: the list is
// short, and it is right also after messages were lost.
func follow(ctx context.Context, socket *nl.NetlinkSocket, handle *netlink.Handle, told func(map[netip.Addr]bool)) {
	defer context.AfterFunc(ctx, socket.Close)()
	for {
		_, _, err := socket.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			klog.ErrorS(err, "Watching the addresses of this node")
			sleep(ctx, rewatch)
		}
		addrs, err := list(handle)
		if err != nil {
			klog.ErrorS(err, "The addresses of this node are not known; those from before stay")
			sleep(ctx, rewatch)
			continue
		}
		told(addrs)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func list(handle *netlink.Handle) (map[netip.Addr]bool, error) {
	list, err := handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("listing the addresses of this node: %w", err)
	}
	addrs := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			addrs[ip.Unmap()] = true
		}
	}
	return addrs, nil
}
