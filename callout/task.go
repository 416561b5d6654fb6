// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// reason says why a program is run.
type reason string

const (
	reasonStart  reason = "start"  // the first state since kpng-callout started
	reasonChange reason = "change" // the state differs from the one before
	reasonRetry  reason = "retry"  // the run before failed
	reasonResync reason = "resync" // --resync has passed
	reasonDelete reason = "delete" // --per-service: the service is gone; retries of it have this reason too
)

// task is one run to be made. Its items are shared with the client's state and never changed.
type task struct {
	key      string // namespace/name of the one service, or empty for the whole state
	items    []*fullstate.ServiceEndpoints
	reason   reason
	revision uint64 // number of the state it belongs to, from 1

	attempt int       // from 1
	due     time.Time // when a retry may start
	lastErr error     // of the attempt before
}

// newTask returns the first attempt at something.
func newTask(key string, items []*fullstate.ServiceEndpoints, revision uint64, why reason) *task {
	if why == reasonChange && revision == 1 {
		why = reasonStart
	}
	return &task{key: key, items: items, reason: why, revision: revision, attempt: 1}
}

// named is the error of a run, with what was run.
func (t *task) named(program string, err error) error {
	if t.key == "" {
		return fmt.Errorf("callout program %s: %w", program, err)
	}
	return fmt.Errorf("callout program %s for service %s: %w", program, t.key, err)
}

// retry is the same task once more, not before due.
func (t *task) retry(due time.Time, err error) *task {
	again := *t
	again.attempt++
	again.due = due
	again.lastErr = err
	if again.reason != reasonDelete { // which tells a service without endpoints from none: that must not get lost
		again.reason = reasonRetry
	}
	return &again
}

// env is what the program is told besides its input.
func (t *task) env(nodeName string) []string {
	return []string{
		"KPNG_NODE_NAME=" + nodeName,
		"KPNG_REVISION=" + strconv.FormatUint(t.revision, 10),
		"KPNG_REASON=" + string(t.reason),
		"KPNG_ATTEMPT=" + strconv.Itoa(t.attempt),
		// Whoever reads fewer lines than this reads an input cut short, as by a kill of kpng-callout.
		"KPNG_ITEMS=" + strconv.Itoa(len(t.items)),
	}
}

// write encodes the items, one a line. Never is more than one of them held encoded.
func (t *task) write(w io.Writer) error {
	buf := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(buf)
	for _, item := range t.items {
		if err := enc.Encode(item); err != nil {
			return err
		}
	}
	return buf.Flush()
}
