// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"
)

// forwarding are the settings without which a packet that we redirected to a pod goes nowhere.
var forwarding = []string{"net.ipv4.ip_forward", forwarding6}

const forwarding6 = "net.ipv6.conf.all.forwarding"

// hasIPv6 tells whether this node has an IPv6 address that others can send to. When that cannot be known it may.
func hasIPv6() bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().Is6() && p.Addr().IsGlobalUnicast() {
			return true
		}
	}
	return false
}

// sysctls is where the settings are: /proc/sys, or a test's folder.
type sysctls string

// ensureForwarding turns forwarding on, or reports everything that is off when it may not. A family that the kernel
// does not have needs none, nor does IPv6 on a node that has no address of it.
func (dir sysctls) ensureForwarding(set, ipv6 bool) error {
	var errs []error
	for _, key := range forwarding {
		value, err := dir.get(key)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && value != "0":
		case err != nil:
			errs = append(errs, err)
		case !set && !ipv6 && key == forwarding6:
			klog.InfoS("This node has no IPv6 address and does not forward IPv6; services of IPv6 would not be reached", "sysctl", key)
		case !set:
			errs = append(errs, fmt.Errorf("%[1]s is 0, so no redirected packet would reach a pod: run `sysctl -w %[1]s=1`, or give --set-sysctls", key))
		default:
			if err := dir.set(key, "1"); err != nil {
				errs = append(errs, err)
				continue
			}
			klog.InfoS("Forwarding was off", "set", key+"=1")
		}
	}
	return errors.Join(errs...)
}

func (dir sysctls) path(key string) string {
	return filepath.Join(string(dir), filepath.FromSlash(strings.ReplaceAll(key, ".", "/")))
}

func (dir sysctls) get(key string) (string, error) {
	content, err := os.ReadFile(dir.path(key))
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(content)), nil
}

func (dir sysctls) set(key, value string) error {
	f, err := os.OpenFile(dir.path(key), os.O_WRONLY, 0) // not created: a setting that is not there is an error
	if err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", key, value, err)
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", key, value, err)
	}
	return nil
}
