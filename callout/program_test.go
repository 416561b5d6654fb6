// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFindProgram(t *testing.T) {
	dir := t.TempDir()
	spaced := filepath.Join(dir, "a program")
	plain := filepath.Join(dir, "plain")
	require.NoError(t, os.WriteFile(spaced, nil, 0o755))
	require.NoError(t, os.WriteFile(plain, nil, 0o644))
	t.Setenv("PATH", dir+":/bin:/usr/bin")

	tests := map[string]struct {
		args []string
		env  string
		want *program
		err  string
	}{
		"default":            {want: &program{path: "/bin/cat"}},
		"path":               {env: spaced, want: &program{path: spaced}},
		"name with a space":  {env: "a program", want: &program{path: spaced}},
		"arguments":          {args: []string{"a program", "-x", "y z"}, env: "ignored", want: &program{spaced, []string{"-x", "y z"}}},
		"missing":            {env: "no-such", err: `$CALLOUT "no-such": executable file not found in $PATH; set it to`},
		"missing path":       {env: dir + "/x", err: "no such file or directory"},
		"not executable":     {env: plain, err: "permission denied"},
		"a directory":        {env: dir, err: "is a directory"},
		"a command line":     {env: "cat -n", err: `$CALLOUT "cat -n": executable file not found in $PATH; it is one program, neither split at spaces nor given to a shell: to pass arguments, use: -- cat -n`},
		"missing argument":   {args: []string{"no-such", "x"}, err: `program "no-such": executable file not found in $PATH`},
		"empty argument":     {args: []string{""}, err: `program ""`},
		"found only in here": {args: []string{"program_test.go"}, err: "not found in $PATH"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := findProgram(test.args, func(name string) string {
				require.Equal(t, "CALLOUT", name)
				return test.env
			})
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				require.NotContains(t, err.Error(), "exec:")
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want.path, got.path)
			require.Equal(t, len(test.want.args), len(got.args))
			require.ElementsMatch(t, test.want.args, got.args)
		})
	}
}
