// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forever is as long as a test may take, and what a program does that has to be killed.
const forever = time.Minute

// trial is a runner of a shell script, in a folder of its own.
type trial struct {
	*runner
	t    *testing.T
	dir  string
	said []string
}

func newTrial(t *testing.T, script string) *trial {
	t.Helper()
	runtime.LockOSThread() // as the worker does; never unlocked, so that what is left dies with the test
	tr := &trial{t: t, dir: t.TempDir()}
	stdout, err := os.Create(filepath.Join(tr.dir, "stdout"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = stdout.Close() })
	tr.runner = &runner{
		program: &program{"/bin/sh", []string{"-c", script}},
		stdout:  stdout,
		say:     func(line string) { tr.said = append(tr.said, line) },
		timeout: forever, stopGrace: forever, killGrace: forever, waitDelay: 200 * time.Millisecond,
	}
	return tr
}

// try runs the script with this input and returns how it ended. None of the tests may take long.
func (tr *trial) try(ctx context.Context, input string) error {
	tr.t.Helper()
	start := time.Now()
	err := tr.run(ctx, []string{"DIR=" + tr.dir}, func(w io.Writer) error {
		_, err := io.WriteString(w, input)
		return err
	})
	require.Less(tr.t, time.Since(start), forever/2)
	return err
}

// file is what a file in the trial's folder holds.
func (tr *trial) file(name string) string {
	tr.t.Helper()
	content, err := os.ReadFile(filepath.Join(tr.dir, name))
	require.NoError(tr.t, err)
	return string(content)
}

// pid waits for a process number that the script writes to a file, and kills that process after the test.
func (tr *trial) pid(name string) int {
	tr.t.Helper()
	var pid int
	require.Eventually(tr.t, func() bool {
		content, err := os.ReadFile(filepath.Join(tr.dir, name))
		if err != nil || !bytes.HasSuffix(content, []byte("\n")) {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(content)))
		return err == nil
	}, forever, 5*time.Millisecond)
	tr.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

// stat is the state and the process group of a process, or "" when there is none (any more).
func stat(pid int) (state, pgid string) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", ""
	}
	_, rest, _ := strings.Cut(string(line), ") ") // what comes before may hold anything
	fields := strings.Fields(rest)
	return fields[0], fields[2]
}

// alive tells whether a process is, and is no zombie that waits for init.
func alive(pid int) bool {
	state, _ := stat(pid)
	return state != "" && state != "Z"
}

func (tr *trial) requireGone(pid int) {
	tr.t.Helper()
	require.Eventually(tr.t, func() bool { return !alive(pid) }, forever, 5*time.Millisecond, "process %d", pid)
}

const megabyte = 1 << 20

func TestRun(t *testing.T) {
	big := strings.Repeat(strings.Repeat("x", 1023)+"\n", 5*megabyte/1024)
	tests := map[string]struct {
		script string
		input  string
		stdout string
		said   []string
		err    string
	}{
		"reads, prints and says":   {`cat; echo problem >&2`, "a\nb\n", "a\nb\n", []string{"problem"}, ""},
		"no input":                 {`cat`, "", "", nil, ""},
		"much input":               {`cat`, big, big, nil, ""},
		"does not read":            {`echo ok`, big, "ok\n", nil, ""},
		"closes its input":         {`exec <&-; sleep 0.1; echo ok`, big, "ok\n", nil, ""},
		"reads the beginning only": {`head -n1`, "first\n" + big, "first\n", nil, ""},
		"exits with a status":      {`echo half; exit 3`, big, "half\n", nil, "exit status 3"},
		"reads and fails":          {`cat >/dev/null; echo no >&2; exit 1`, big, "", []string{"no"}, "exit status 1"},
		"dies of a signal":         {`kill -SEGV $$`, big, "", nil, "signal: segmentation fault"},
		"prints megabytes":         {`head -c 5M /dev/zero | tr '\0' x`, "", strings.Repeat("x", 5*megabyte), nil, ""},
		"prints before it reads":   {`head -c 5M /dev/zero | tr '\0' x; cat >/dev/null`, big, strings.Repeat("x", 5*megabyte), nil, ""},
		"says megabytes in a line": {`head -c 5M /dev/zero | tr '\0' x >&2`, "", "", []string{strings.Repeat("x", maxLineBytes) + fmt.Sprintf("... (%d bytes more)", 5*megabyte-maxLineBytes)}, ""},
		"is told its surroundings": {`test -d "$DIR" && test -n "$PATH" && echo ok`, "", "ok\n", nil, ""},
		"leads a group of its own": {`test $(cut -d" " -f5 /proc/$$/stat) = $$ && echo ok`, "", "ok\n", nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, test.script)
			err := tr.try(t.Context(), test.input)
			if test.err == "" {
				require.NoError(t, err)
			} else {
				_, exited := errors.AsType[*exec.ExitError](err)
				require.True(t, exited)
				require.EqualError(t, err, test.err)
			}
			got := tr.file("stdout")
			if got != test.stdout { // not Equal, which would print megabytes
				t.Fatalf("stdout: %d bytes (%.100q) instead of %d (%.100q)", len(got), got, len(test.stdout), test.stdout)
			}
			require.Equal(t, test.said, tr.said)
		})
	}
}

func TestRunSaysTooMuch(t *testing.T) {
	tr := newTrial(t, `yes complaint | head -n 100000 >&2`)
	require.NoError(t, tr.try(t.Context(), ""))
	require.Len(t, tr.said, maxRunLines+1)
}

func TestRunTimeout(t *testing.T) {
	tests := map[string]struct {
		script    string
		killGrace time.Duration
	}{
		"sleeps":                       {`sleep 1000`, forever},
		"sleeps in a child":            {`sleep 1000; true`, forever},
		"has children in a pipe":       {`sleep 1000 | sleep 1000 | cat; true`, forever},
		"waits for jobs":               {`sleep 1000 & sleep 1000 & wait`, forever},
		"ignores SIGTERM":              {`trap "" TERM; while :; do sleep 1000; done`, 50 * time.Millisecond},
		"its children ignore SIGTERM":  {`(trap "" TERM; sleep 1000)& wait`, forever},
		"stops itself":                 {`kill -STOP $$`, 50 * time.Millisecond},
		"exits with 0 when terminated": {`trap "exit 0" TERM; while :; do sleep 0.01; done`, forever},
		"does not read":                {`exec sleep 1000`, forever},
		"prints without end":           {`yes`, forever},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, `echo $$ >$DIR/pid; `+test.script)
			tr.timeout = 200 * time.Millisecond
			tr.killGrace = test.killGrace
			err := tr.try(t.Context(), strings.Repeat("x\n", megabyte))
			require.ErrorIs(t, err, errTimeout)
			requireGroupGone(t, tr.pid("pid"))
		})
	}
}

// requireGroupGone waits until no process of a group is left.
func requireGroupGone(t *testing.T, pgid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir("/proc")
		require.NoError(t, err)
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			if state, group := stat(pid); group == strconv.Itoa(pgid) && state != "Z" {
				return false
			}
		}
		return true
	}, forever, 20*time.Millisecond, "group %d", pgid)
}

// TestRunTimeoutIsGentle: a program that is killed can put its things in order, and its input is not cut short meanwhile.
func TestRunTimeoutIsGentle(t *testing.T) {
	tr := newTrial(t, `trap "" TERM; sleep 0.5; cat >$DIR/input`)
	tr.timeout = 100 * time.Millisecond
	input := strings.Repeat("x\n", megabyte)
	require.ErrorIs(t, tr.try(t.Context(), input), errTimeout)
	require.Equal(t, len(input), len(tr.file("input")))
}

// TestRunDoesNotWaitForOthers: what a program leaves running keeps our pipes open, and us not waiting.
func TestRunDoesNotWaitForOthers(t *testing.T) {
	t.Run("a job in the background", func(t *testing.T) {
		tr := newTrial(t, `sleep 1000 & echo $! >$DIR/pid; echo said >&2`)
		require.NoError(t, tr.try(t.Context(), strings.Repeat("x\n", megabyte)))
		require.Equal(t, []string{"said"}, tr.said)
		require.True(t, alive(tr.pid("pid")), "it was left on purpose")
	})
	t.Run("a job that holds the input", func(t *testing.T) {
		tr := newTrial(t, `exec 3<&0; sleep 1000 <&3 & echo $! >$DIR/pid`)
		require.NoError(t, tr.try(t.Context(), strings.Repeat("x\n", megabyte)))
		require.True(t, alive(tr.pid("pid")))
	})
	t.Run("a daemon, and the program hangs", func(t *testing.T) {
		tr := newTrial(t, `exec 3<&0; setsid sh -c 'echo $$ >$DIR/pid; exec sleep 1000' <&3 & wait`)
		tr.timeout = 300 * time.Millisecond
		require.ErrorIs(t, tr.try(t.Context(), strings.Repeat("x\n", megabyte)), errTimeout)
		require.True(t, alive(tr.pid("pid")), "it is no part of the group any more")
	})
	t.Run("a job of a shell that was killed", func(t *testing.T) {
		tr := newTrial(t, `sleep 1000 & echo $! >$DIR/pid; kill -9 $$`)
		require.ErrorContains(t, tr.try(t.Context(), ""), "signal: killed")
		tr.requireGone(tr.pid("pid")) // it would work beside the retry
	})
}

func TestRunStop(t *testing.T) {
	t.Run("it may end by itself", func(t *testing.T) {
		tr := newTrial(t, `echo $$ >$DIR/pid; sleep 0.3; cat; exit 0`)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		require.NoError(t, tr.try(ctx, "x\n"))
		require.Equal(t, "x\n", tr.file("stdout"))
	})
	t.Run("and fail by itself", func(t *testing.T) {
		tr := newTrial(t, `sleep 0.3; exit 4`)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		require.EqualError(t, tr.try(ctx, "x\n"), "exit status 4")
	})
	for name, script := range map[string]string{
		"it hangs":         `sleep 1000; true`,
		"it hears SIGTERM": `trap "echo bye; exit 0" TERM; while :; do sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrial(t, `echo $$ >$DIR/pid; `+script)
			tr.stopGrace = 100 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			require.ErrorIs(t, tr.try(ctx, "x\n"), errStopped)
			requireGroupGone(t, tr.pid("pid"))
		})
	}
	t.Run("the timeout counts on", func(t *testing.T) {
		tr := newTrial(t, `sleep 1000`)
		tr.timeout = 200 * time.Millisecond
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Error(t, tr.try(ctx, ""))
	})
}

// TestRunBlockedOutput: a reader of our output that does not read stops the program, not us.
func TestRunBlockedOutput(t *testing.T) {
	tr := newTrial(t, `exec yes`)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	tr.stdout = w
	tr.timeout = 200 * time.Millisecond
	require.ErrorIs(t, tr.try(t.Context(), "x\n"), errTimeout)
	require.False(t, nobodyReads(w))

	require.NoError(t, r.Close())
	require.True(t, nobodyReads(w))
	tr.timeout = forever
	require.EqualError(t, tr.try(t.Context(), "x\n"), "signal: broken pipe")
}

func TestNobodyReadsIsForPipes(t *testing.T) {
	for _, name := range []string{os.DevNull, filepath.Join(t.TempDir(), "file")} {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		require.False(t, nobodyReads(f))
		require.NoError(t, f.Close())
	}
}

func TestRunCannotStart(t *testing.T) {
	tr := newTrial(t, "")
	path := filepath.Join(tr.dir, "program")
	tr.program = &program{path: path}
	require.ErrorIs(t, tr.try(t.Context(), "x\n"), errNotStarted)

	require.NoError(t, os.WriteFile(path, []byte("echo no first line\n"), 0o755))
	err := tr.try(t.Context(), "x\n")
	require.ErrorIs(t, err, errNotStarted)
	require.ErrorContains(t, err, "#!/bin/sh")

	require.NoError(t, os.WriteFile(path, []byte("#!/no/such/interpreter\n"), 0o755))
	require.ErrorIs(t, tr.try(t.Context(), "x\n"), errNotStarted)

	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\necho fixed\n"), 0o755))
	require.NoError(t, tr.try(t.Context(), "x\n"), "a program may come back")
}

func TestRunFeedFails(t *testing.T) {
	tr := newTrial(t, `cat`)
	broken := errors.New("broken")
	err := tr.run(t.Context(), nil, func(io.Writer) error { return broken })
	require.ErrorIs(t, err, broken, "the program cannot know that its input is not whole")
}
