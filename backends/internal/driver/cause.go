// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"errors"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// cause says why something was not written. It is the label of a metric, so there are few.
type cause string

const (
	causeRefused     cause = "refused"     // by the kernel
	causeUnsupported cause = "unsupported" // by this kernel at all
	causeTimeout     cause = "timeout"
	causeTool        cause = "tool" // a program that we run said no, or is not there
	causeOther       cause = "other"
)

var causes = []cause{causeRefused, causeUnsupported, causeTimeout, causeTool, causeOther}

func causeOf(err error) cause {
	var said *exec.ExitError
	var missing *exec.Error
	var errno unix.Errno
	switch {
	case isAny(err, dataplane.ErrUnsupported, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT):
		return causeUnsupported
	case isAny(err, context.DeadlineExceeded, os.ErrDeadlineExceeded, unix.ETIMEDOUT, exec.ErrWaitDelay):
		return causeTimeout
	case errors.As(err, &said), errors.As(err, &missing):
		return causeTool
	case isAny(err, unix.EPERM, unix.EACCES):
		return causeOther
	case errors.As(err, &errno):
		return causeRefused
	default:
		return causeOther
	}
}

// ofAll tells whether an error says nothing about single services: leaving some out would not help.
func ofAll(err error) bool {
	var missing *exec.Error
	return causeOf(err) == causeTimeout || errors.As(err, &missing) ||
		isAny(err, unix.EPERM, unix.EACCES, unix.EINTR, unix.EAGAIN, context.Canceled)
}

func isAny(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}
