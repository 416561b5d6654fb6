// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

const (
	// programEnv names the environment variable that holds the program when none is given as an argument.
	programEnv = "CALLOUT"

	// defaultProgram prints the items, which makes a first try useful.
	defaultProgram = "/bin/cat"
)

// program is what is run, found and checked once at the start.
type program struct {
	path string
	args []string
}

// findProgram finds the program to run: args (the program and its arguments) or, when there are none, the value
// of $CALLOUT as one name or path, or the default. No shell is involved and nothing is split at spaces.
func findProgram(args []string, getenv func(string) string) (*program, error) {
	if len(args) > 0 {
		path, err := lookPath(args[0])
		if err != nil {
			return nil, fmt.Errorf("program %q: %w; give the path or the name of an executable", args[0], err)
		}
		return &program{path: path, args: args[1:]}, nil
	}
	value := getenv(programEnv)
	if value == "" {
		value = defaultProgram
	}
	path, err := lookPath(value)
	if err == nil {
		return &program{path: path}, nil
	}
	if fields := strings.Fields(value); len(fields) > 1 {
		return nil, fmt.Errorf("$%s %q: %w; it is one program, neither split at spaces nor given to a shell: to pass arguments, use: -- %s",
			programEnv, value, err, strings.Join(fields, " "))
	}
	return nil, fmt.Errorf("$%s %q: %w; set it to the path or the name of an executable, or give a program after --",
		programEnv, value, err)
}

// lookPath is exec.LookPath with an error that does not repeat the name.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if wrapped, ok := errors.AsType[*exec.Error](err); ok {
		err = wrapped.Err
	}
	return path, err
}
