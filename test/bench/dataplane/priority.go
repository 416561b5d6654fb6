// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// before lets this program, and the proxies that it starts from now on, go before other work on the machine, so that
// what is measured is less what else runs there. To the kernel priority is a thread's own and its children's: when all
// threads have it, so has everything that comes after.
func (b *bench) before() {
	if err := setPriority(b.nice); err != nil {
		b.log("no priority over other work on the machine: %v", err)
	}
}

func setPriority(nice int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		id, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, nice); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
