// SPDX-License-Identifier: Apache-2.0

// Package report writes what a benchmark measured as Markdown: tables, and each goal with what was reached.
package report

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Report writes Markdown as it comes, and keeps the goals for its end.
type Report struct {
	out   io.Writer
	goals []goalLine
}

// New makes a report that writes to out.
func New(out io.Writer) *Report { return &Report{out: out} }

// Open makes a report that writes to standard output, and to a file if one is named. closeFile says whether all of it got
// there.
func Open(path string) (r *Report, closeFile func() error, err error) {
	if path == "" {
		return New(os.Stdout), func() error { return nil }, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	return New(io.MultiWriter(os.Stdout, file)), file.Close, nil
}

type goalLine struct {
	what, want, got string
	met             bool
}

// Heading starts a section.
func (r *Report) Heading(format string, args ...any) {
	fmt.Fprintf(r.out, "\n## "+format+"\n\n", args...)
}

// Text writes a line.
func (r *Report) Text(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }

// Row writes a line of a table.
func (r *Report) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = fmt.Sprint(cell)
	}
	fmt.Fprintf(r.out, "| %s |\n", strings.Join(texts, " | "))
}

// Header starts a table.
func (r *Report) Header(cells ...string) {
	fmt.Fprintf(r.out, "| %s |\n|%s\n", strings.Join(cells, " | "), strings.Repeat("---|", len(cells)))
}

// Goal notes what was to be reached and what was.
func (r *Report) Goal(met bool, what, want, got string) {
	r.goals = append(r.goals, goalLine{what, want, got, met})
}

// End writes the goals.
func (r *Report) End() {
	r.Heading("Goals")
	r.Header("goal", "to reach", "measured", "")
	for _, g := range r.goals {
		verdict := "met"
		if !g.met {
			verdict = "**missed**"
		}
		r.Row(g.what, g.want, g.got, verdict)
	}
}

// Percentile of some durations, which it sorts.
func Percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, len(all)*p/100)]
}

// MS prints a duration with the digits that mean something.
func MS(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + MS(-d)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	default:
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
}

// MB prints a number of bytes.
func MB(bytes int) string { return fmt.Sprintf("%.1f MB", float64(bytes)/1e6) }

// Both prints the median and the 99th percentile of some durations, which it sorts.
func Both(all []time.Duration) string {
	return fmt.Sprintf("%s / %s", MS(Percentile(all, 50)), MS(Percentile(all, 99)))
}
