// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// step prints the heading of the next part.
func (d *demo) step(format string, args ...any) {
	d.steps++
	fmt.Fprintf(d.out, "\n%d. %s\n", d.steps, fmt.Sprintf(format, args...))
}

// say prints a line of explanation or output.
func (d *demo) say(format string, args ...any) {
	for line := range strings.Lines(fmt.Sprintf(format, args...)) {
		fmt.Fprintf(d.out, "   %s", line)
	}
	fmt.Fprintln(d.out)
}

// check prints what was found, and whether it is what should be. It returns the error.
func (d *demo) check(err error, format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	if err != nil {
		fmt.Fprintf(d.out, "   ✗ %s: %v\n", what, err)
		return fmt.Errorf("step %d: %s: %w", d.steps, what, err)
	}
	fmt.Fprintf(d.out, "   ✓ %s\n", what)
	return nil
}

func since(start time.Time) string { return time.Since(start).Round(time.Millisecond).String() }

// pretty lays one item of kpng-json out for reading: the service in full, an endpoint a line.
func pretty(line string) string {
	var item struct {
		Service   json.RawMessage
		Endpoints []json.RawMessage
	}
	if err := json.Unmarshal([]byte(line), &item); err != nil {
		return line
	}
	var b bytes.Buffer
	b.WriteString("{\n  \"Service\": ")
	if err := json.Indent(&b, item.Service, "  ", "  "); err != nil {
		return line
	}
	b.WriteString(",\n  \"Endpoints\": [")
	for i, e := range item.Endpoints {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "\n    %s", e)
	}
	b.WriteString("\n  ]\n}")
	return b.String()
}
