// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root     = "../.."
	document = root + "/docs/write-a-backend.md"
	limit    = 100 // lines of Go, as the document says
)

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(content)
}

// TestDocumentIsTheProgram: the code in the document, piece after piece, is main.go.
func TestDocumentIsTheProgram(t *testing.T) {
	var pieces []string
	for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```\n").FindAllStringSubmatch(read(t, document), -1) {
		pieces = append(pieces, m[1])
	}
	program := strings.Join(pieces, "\n")
	require.Equal(t, read(t, "main.go"), program)
	require.LessOrEqual(t, strings.Count(program, "\n"), limit)
}

var (
	commandLine = regexp.MustCompile(`^    \$ go run \./examples/mail (.*?)(?: \|.*)?$`)
	logHead     = regexp.MustCompile(`^I\d+ .*?\] `)
)

// TestDocumentShowsWhatIsSeen runs the document's commands: each line that it shows below one comes out of it.
func TestDocumentShowsWhatIsSeen(t *testing.T) {
	dir := t.TempDir()
	kpng, api := filepath.Join(dir, "kpng"), "unix://"+filepath.Join(dir, "kpng.sock")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", kpng, root+"/cmd/kpng")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as the Makefile does, which has filled the cache
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, read(t, document), "bin/kpng file -i examples/mail/mail.yaml --service-proxy-name=kpng-mail to-api &")
	server := exec.CommandContext(t.Context(), kpng, "file", "-i", "mail.yaml", "--service-proxy-name=kpng-mail", "to-api", "--listen="+api)
	require.NoError(t, server.Start())
	t.Cleanup(func() { _ = server.Wait() }) // it is killed when the test's context ends, before

	commands := 0
	output := ""
	for line := range strings.Lines(read(t, document)) {
		line = strings.TrimSuffix(line, "\n")
		if m := commandLine.FindStringSubmatch(line); m != nil {
			commands++
			cmd := exec.CommandContext(t.Context(), os.Args[0], append(strings.Fields(m[1]), "--api="+api)...)
			cmd.Env = append(os.Environ(), "KPNG_TEST_PROGRAM=1")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s: %s", line, out)
			output = string(out)
			continue
		}
		shown, ok := strings.CutPrefix(line, "    ")
		if !ok {
			output = ""
		}
		if output != "" {
			require.Contains(t, output, logHead.ReplaceAllString(shown, ""))
		}
	}
	require.Equal(t, 3, commands)
}
