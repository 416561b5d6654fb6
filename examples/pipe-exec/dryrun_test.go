// SPDX-License-Identifier: Apache-2.0

package pipeexec_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// shells are those that /bin/sh is on the systems people run this on.
var shells = map[string][]string{
	"dash":    {"dash"},
	"busybox": {"busybox", "sh"},
	"bash":    {"bash", "--posix"},
}

// TestDryRun compares the whole output for each input of testdata with its golden file, under each shell.
func TestDryRun(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, inputs)
	for shell, command := range shells {
		for _, input := range inputs {
			t.Run(shell+"/"+filepath.Base(input), func(t *testing.T) {
				got := dryRun(t, command, input)
				golden := strings.TrimSuffix(input, ".json") + ".golden"
				if *update {
					require.NoError(t, os.WriteFile(golden, []byte(got.text()), 0o644))
				}
				want, err := os.ReadFile(golden)
				require.NoError(t, err)
				require.Equal(t, string(want), got.text())
			})
		}
	}
}

// text is what a golden file holds.
func (o outcome) text() string {
	return fmt.Sprintf("%s--- stderr\n%s--- status %d\n", o.stdout, o.stderr, o.status)
}

func dryRun(t *testing.T, shell []string, input string, args ...string) outcome {
	t.Helper()
	needTool(t, "jq", shell[0])
	stdin, err := os.Open(input)
	require.NoError(t, err)
	defer stdin.Close()
	cmd := exec.Command(shell[0], append(append(shell[1:len(shell):len(shell)], script(t)), args...)...)
	cmd.Stdin = stdin
	cmd.Env = append(os.Environ(), "iptables=echo", "ip6tables=echo")
	return finish(t, cmd, cmd)
}

// TestGarbage: what is not the items, or not all of them, leads to no rule at all and to a failure, so that callout tries again.
func TestGarbage(t *testing.T) {
	good := `{"Service":{"Namespace":"default","Name":"a","IPs":{"ExternalIPs":{"V4":["10.0.0.1"]}}},"Endpoints":[{"IPs":{"V4":["11.0.0.1"]},"Local":true}]}`
	tests := map[string]struct {
		input string
		env   string
		says  string
	}{
		"no JSON":                  {"jq is not amused\n", "", "parse error"},
		"garbage after a line":     {good + "\nx\n", "", "parse error"},
		"a line cut in the middle": {good + "\n" + good[:40], "", "parse error"},
		"cut between two lines":    {good + "\n", "KPNG_ITEMS=2", "cut short: 1 items instead of 2"},
		"cut before the first":     {"", "KPNG_ITEMS=1", "cut short: 0 items instead of 1"},
		"null":                     {"null\n", "", "not an item: null"},
		"a list":                   {"[" + good + "]\n", "", "not an item: ["},
		"no name":                  {`{"Service":{"Namespace":"default"}}`, "", "not an item: {"},
		"a name of another type":   {`{"Service":{"Namespace":"default","Name":[]}}`, "", "not an item: {"},
		"addresses of no set":      {`{"Service":{"Namespace":"a","Name":"b","IPs":{"ExternalIPs":["10.0.0.1"]}}}`, "", "Cannot index"},
		"endpoints of no list":     {`{"Service":{"Namespace":"a","Name":"b"},"Endpoints":"x"}`, "", "Cannot iterate"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			needTool(t, "jq")
			cmd := exec.Command(script(t))
			cmd.Stdin = strings.NewReader(test.input)
			cmd.Env = append(os.Environ(), "iptables=echo", "ip6tables=echo")
			if test.env != "" {
				cmd.Env = append(cmd.Env, test.env)
			}
			got := finish(t, cmd, cmd)
			require.Equal(t, 1, got.status)
			require.Empty(t, got.stdout)
			require.Contains(t, got.stderr, test.says)
			require.Contains(t, got.stderr, "nothing was changed")
		})
	}
}

func TestCleanupDryRun(t *testing.T) {
	got := dryRun(t, []string{"sh"}, os.DevNull, "cleanup")
	require.Equal(t, outcome{stdout: `iptables -w 5 -t nat -D PREROUTING -j KPNG-ALLIP
iptables -w 5 -t nat -D OUTPUT -j KPNG-ALLIP
iptables -w 5 -t nat -F KPNG-ALLIP
iptables -w 5 -t nat -X KPNG-ALLIP
ip6tables -w 5 -t nat -D PREROUTING -j KPNG-ALLIP
ip6tables -w 5 -t nat -D OUTPUT -j KPNG-ALLIP
ip6tables -w 5 -t nat -F KPNG-ALLIP
ip6tables -w 5 -t nat -X KPNG-ALLIP
`}, got)
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"cleanup", "now"}} {
		got := dryRun(t, []string{"sh"}, os.DevNull, args...)
		require.Equal(t, 2, got.status)
		require.Empty(t, got.stdout)
		require.Contains(t, got.stderr, "usage: kpng-example-allip [cleanup]")
	}
}
