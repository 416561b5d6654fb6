// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"bytes"
	"fmt"
)

const (
	// maxLineBytes is how much of one line of a program's standard error is logged.
	maxLineBytes = 4 << 10

	// maxRunLines is how many lines of one run are logged. A program gone mad must not fill the node's disk.
	maxRunLines = 1000
)

// lineWriter hands what is written to it to emit, line by line, holding one bounded line at most.
type lineWriter struct {
	emit    func(line string)
	line    []byte
	dropped int // bytes of the current line beyond maxLineBytes
	started bool
	lines   int
}

// Write never fails: a log is no reason to stop a program.
func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		part, rest, ended := bytes.Cut(p, []byte{'\n'})
		w.add(part)
		if ended {
			w.end()
		}
		p = rest
	}
	return n, nil
}

func (w *lineWriter) add(part []byte) {
	w.started = true
	keep := min(len(part), maxLineBytes-len(w.line))
	w.line = append(w.line, part[:keep]...)
	w.dropped += len(part) - keep
}

func (w *lineWriter) end() {
	w.lines++
	if w.lines <= maxRunLines {
		line := string(bytes.TrimSuffix(w.line, []byte{'\r'}))
		if w.dropped > 0 {
			line += fmt.Sprintf("... (%d bytes more)", w.dropped)
		}
		w.emit(line)
	}
	w.line, w.dropped, w.started = w.line[:0], 0, false
}

// flush emits an unfinished last line, and says how many lines were left out.
func (w *lineWriter) flush() {
	if w.started {
		w.end()
	}
	if left := w.lines - maxRunLines; left > 0 {
		w.emit(fmt.Sprintf("... (%d lines more)", left))
	}
}
