// SPDX-License-Identifier: Apache-2.0

// Package usage reads what processor time and memory another process uses.
package usage

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time that a process has used so far, of all its threads. It is the process's own clock: the
// ticks of /proc/PID/stat are 10 ms, more than a change costs.
func CPU(pid int) time.Duration {
	const allThreads = 2 // CPUCLOCK_SCHED, see MAKE_PROCESS_CPUCLOCK in the kernel's posix-timers.h
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|allThreads), &now); err != nil {
		return 0 // it has ended
	}
	return time.Duration(now.Nano())
}

// Resident is what a process has in memory, now and at most so far, in bytes.
func Resident(pid int) (now, peak int) {
	return status(pid, "VmRSS"), status(pid, "VmHWM")
}

func status(pid int, field string) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if name != field {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		if n, err := strconv.Atoi(number); err == nil {
			return n << 10
		}
	}
	return 0
}
