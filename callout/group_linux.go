// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// exit is how a process that has not been reaped yet ended.
type exit struct {
	signaled bool // by a signal, not by itself
}

// cldExited is CLD_EXITED of waitid(2): the child ended by calling exit.
const cldExited = 1

// ownGroup makes the program the leader of a process group. Should we be killed, the kernel kills the program, so
// that a restarted kpng-callout does not find a run of the old one still at work. The kernel means the thread
// that started the program when it speaks of its parent: that thread has to outlive the program.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// waitUnreaped waits until the process has exited and leaves it a zombie.
func waitUnreaped(process *os.Process) exit {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if err != unix.EINTR {
			return exit{signaled: err == nil && info.Code != cldExited}
		}
	}
}

// signalGroup signals all that is left of the group whose leader is process.
func signalGroup(process *os.Process, signal syscall.Signal) {
	if err := syscall.Kill(-process.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		klog.ErrorS(err, "callout: signalling the program's process group failed", "pgid", process.Pid, "signal", signal)
	}
}

// nobodyReads tells whether a file is a pipe or socket without a reader.
func nobodyReads(file *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(file.Fd()), Events: 0}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1 && fds[0].Revents&(unix.POLLERR|unix.POLLNVAL) != 0
}
