// SPDX-License-Identifier: Apache-2.0

// Package isolate moves a test process, with all that it starts, into namespaces of its own.
package isolate

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// inside marks the process that is in its own namespaces.
const inside = "KPNG_E2E_INSIDE"

// inUserNamespace marks the process that is root only there.
const inUserNamespace = "KPNG_E2E_USER_NAMESPACE"

// Rootless tells whether root of these namespaces is nobody on the machine, and may less than root.
func Rootless() bool { return os.Getenv(inUserNamespace) != "" }

// Enter replaces this process by one in new namespaces: of the network, with the loopback device up; of process ids, so
// that nothing outlives the tests; of mounts, so that named network namespaces are forgotten with them. Without root it
// takes a user namespace too, in which it is root.
func Enter() error {
	if os.Getenv(inside) != "" {
		return nil
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return fmt.Errorf("the end-to-end tests need unshare (util-linux): %w", err)
	}
	args := []string{"unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"}
	env := append(os.Environ(), inside+"=1")
	if os.Getuid() != 0 {
		args = append(args, "--map-root-user")
		env = append(env, inUserNamespace+"=1")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args = append(args, "sh", "-c", `PATH=$PATH:/usr/sbin:/sbin; ip link set lo up && exec "$@"`, "sh", self)
	args = append(args, os.Args[1:]...)
	return syscall.Exec(unshare, args, env)
}
