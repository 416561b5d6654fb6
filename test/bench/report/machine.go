// SPDX-License-Identifier: Apache-2.0

package report

import (
	"os"
	"runtime"
	"strings"
)

// Machine says where the figures come from.
func (r *Report) Machine(title string) {
	r.Text("# %s\n\n%d processors (%s), %s, Linux %s; load average at the start %s",
		title, runtime.NumCPU(), processor(), runtime.Version(), firstField("/proc/sys/kernel/osrelease"), firstField("/proc/loadavg"))
}

func firstField(file string) string {
	text, err := os.ReadFile(file)
	if fields := strings.Fields(string(text)); err == nil && len(fields) != 0 {
		return fields[0]
	}
	return "unknown"
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
