// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/klog/v2"
)

// forwarding are the settings without which a packet that we redirected to a pod goes nowhere.
var forwarding = []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"}

// sysctls is where the settings are: /proc/sys, or a test's folder.
type sysctls string

// ensureForwarding turns forwarding on, or reports everything that is off when it may not. A family that the kernel
// does not have needs none.
func (dir sysctls) ensureForwarding(set bool) error {
	var errs []error
	for _, key := range forwarding {
		value, err := dir.get(key)
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && value != "0":
		case err != nil:
			errs = append(errs, err)
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
