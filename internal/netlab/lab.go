// SPDX-License-Identifier: Apache-2.0

//go:build linux

package netlab

import (
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrClosed is what acting in a closed lab gives.
var ErrClosed = errors.New("netlab: the lab is closed")

// Lab is a set of hosts. Its methods may be called from several goroutines.
type Lab struct {
	onErr func(error) // told of the first error, once; may be nil
	echo  echoes      // ICMP echo requests on their way

	mu      sync.Mutex
	err     error
	closed  bool
	hosts   []*Host
	closers []func() // run in reverse order by Close, before the hosts go
}

// New makes an empty lab. Close it.
func New() *Lab { return &Lab{} }

// TB is what a lab wants of a *testing.T, *testing.B or *testing.F.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// ForTest makes a lab that lives as long as the test and fails it at the first error of a builder.
// Where network namespaces are not allowed the test is skipped; call [EnsurePrivilege] in TestMain to get them
// wherever that is possible at all. Builders must then be called from the test's own goroutine.
func ForTest(t TB) *Lab {
	t.Helper()
	if err := Privileged(); err != nil {
		t.Skipf("%v", err)
	}
	l := New()
	l.onErr = func(err error) { t.Helper(); t.Fatalf("%v", err) }
	t.Cleanup(l.Close)
	return l
}

// Err is the first error of any builder, nil while all went well.
func (l *Lab) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the lab: servers, then programs started in it, then the namespaces with all that is in them.
// It returns when the threads that held them are told to end; the kernel takes the rest down shortly after.
// Closing twice is fine.
func (l *Lab) Close() {
	l.mu.Lock()
	closers, hosts := l.closers, l.hosts
	l.closers, l.hosts, l.closed = nil, nil, true
	l.mu.Unlock()

	for _, c := range slices.Backward(closers) {
		c()
	}
	for _, h := range hosts {
		h.close()
	}
}

// atClose has fn run by Close; at once when the lab is closed already.
func (l *Lab) atClose(fn func()) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.closers = append(l.closers, fn)
	}
	l.mu.Unlock()
	if closed {
		fn()
	}
}

// build runs one building step unless an earlier one failed, and keeps its error.
func (l *Lab) build(what string, step func() error) {
	l.mu.Lock()
	err, closed := l.err, l.closed
	l.mu.Unlock()
	if err != nil {
		return
	}
	if closed {
		err = ErrClosed
	} else {
		err = step()
	}
	if err == nil {
		return
	}
	err = fmt.Errorf("netlab: %s: %w", what, err)
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	if l.onErr != nil {
		l.onErr(err)
	}
}
