// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// logged is what comes of a program's standard error that arrives in pieces of n bytes.
func logged(text string, n int) (lines []string) {
	w := &lineWriter{emit: func(line string) { lines = append(lines, line) }}
	for len(text) > 0 {
		piece := text[:min(n, len(text))]
		if written, err := w.Write([]byte(piece)); written != len(piece) || err != nil {
			panic(fmt.Sprint(written, err))
		}
		text = text[len(piece):]
	}
	w.flush()
	return lines
}

func TestLineWriter(t *testing.T) {
	full := strings.Repeat("x", maxLineBytes)
	tests := map[string]struct {
		text string
		want []string
	}{
		"nothing":                {"", nil},
		"lines":                  {"a\nb\n", []string{"a", "b"}},
		"an unfinished line":     {"a\nb", []string{"a", "b"}},
		"empty lines":            {"\n\na\n", []string{"", "", "a"}},
		"carriage returns":       {"a\r\nb\r\n", []string{"a", "b"}},
		"as long as may be":      {full + "\na\n", []string{full, "a"}},
		"a byte longer":          {full + "y\na\n", []string{full + "... (1 bytes more)", "a"}},
		"endless, and no end":    {strings.Repeat(full, 3), []string{full + fmt.Sprintf("... (%d bytes more)", 2*maxLineBytes)}},
		"bytes that are no text": {"\xff\x00\n", []string{"\xff\x00"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, n := range []int{1, 2, 1000, 1 << 20} {
				require.Equal(t, test.want, logged(test.text, n))
			}
		})
	}
}

func TestLineWriterLimitsLines(t *testing.T) {
	lines := logged(strings.Repeat("x\n", maxRunLines+5), 7)
	require.Len(t, lines, maxRunLines+1)
	require.Equal(t, "... (5 lines more)", lines[maxRunLines])
}

// FuzzLineWriter: what is logged does not depend on the pieces in which a program's words arrive, and is bounded.
func FuzzLineWriter(f *testing.F) {
	f.Add("a\nb", 1)
	f.Add("a\r\n\r\n", 2)
	f.Add(strings.Repeat("x", maxLineBytes+1)+"\n", 100)
	f.Fuzz(func(t *testing.T, text string, n int) {
		if n < 1 {
			n = 1
		}
		lines := logged(text, n)
		require.Equal(t, logged(text, len(text)+1), lines)
		require.LessOrEqual(t, len(lines), maxRunLines+1)
		for _, line := range lines {
			require.LessOrEqual(t, len(line), maxLineBytes+40)
		}
	})
}
