// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// report writes Markdown as it comes, and keeps the goals for its end.
type report struct {
	out   io.Writer
	goals []goalLine
}

type goalLine struct {
	what, want, got string
	met             bool
}

func (r *report) heading(format string, args ...any) {
	fmt.Fprintf(r.out, "\n## "+format+"\n\n", args...)
}

func (r *report) text(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

func (r *report) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = fmt.Sprint(cell)
	}
	fmt.Fprintf(r.out, "| %s |\n", strings.Join(texts, " | "))
}

func (r *report) header(cells ...string) {
	fmt.Fprintf(r.out, "| %s |\n|%s\n", strings.Join(cells, " | "), strings.Repeat("---|", len(cells)))
}

// goal notes what was to be reached and what was.
func (r *report) goal(met bool, what, want, got string) {
	r.goals = append(r.goals, goalLine{what, want, got, met})
}

func (r *report) end() {
	r.heading("Goals")
	r.header("goal", "to reach", "measured", "")
	for _, g := range r.goals {
		verdict := "met"
		if !g.met {
			verdict = "**missed**"
		}
		r.row(g.what, g.want, g.got, verdict)
	}
}

// percentile of some durations, which it sorts.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}

// ms prints a duration with the digits that mean something.
func ms(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + ms(-d)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

func mb(bytes int) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }
