// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// pollMillis is how often the wait looks whether it is still wanted.
const pollMillis = 500

// waitForReader waits until the reader of a pipe has gone, and says so; for anything but a pipe it returns at once.
func waitForReader(ctx context.Context, f *os.File) (gone bool) {
	info, err := f.Stat()
	if err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) == 0 {
		return false
	}
	// Without an event asked for, poll tells of POLLERR alone: nobody can read what would be written.
	fds := []unix.PollFd{{Fd: int32(f.Fd())}}
	for ctx.Err() == nil {
		n, err := unix.Poll(fds, pollMillis)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false
		case n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			return true
		}
	}
	return false
}
