// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// logInterval is how often skipped ops are told of: a server that sends garbage sends a lot of it.
const logInterval = 10 * time.Second

// Log tells of trouble with ops, at a bounded rate. The zero value is ready.
type Log struct {
	mu      sync.Mutex
	next    time.Time
	omitted int
}

// Skipped tells of one op that makes no sense, unless something was told a moment ago.
func (l *Log) Skipped(reason error) { l.tell(reason, "Skipped an op that makes no sense") }

// Failed tells of one op that the backend failed on, unless something was told a moment ago.
func (l *Log) Failed(err error) { l.tell(err, "The backend failed on an op") }

func (l *Log) tell(err error, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if now.Before(l.next) {
		l.omitted++
		return
	}
	klog.ErrorS(err, message, "untoldBefore", l.omitted)
	l.next, l.omitted = now.Add(logInterval), 0
}
