// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/proc"
)

// TestWalkthrough does what the README tells a newcomer to do, word for word: same commands, default addresses, the
// node's name found by itself.
func TestWalkthrough(t *testing.T) {
	s := &scene{t: t, namespace: "default", proxyName: "kpng-example"}
	// shell runs a command as in a terminal, and returns what the terminal shows.
	shell := func(command string) (*proc.Process, *proc.Buffer) {
		screen, shown := terminal(t)
		return start(t, proc.Spec{Path: "/bin/sh", Args: []string{"-c", command}, Dir: repo, Stdout: screen, Env: []string{
			"KUBECONFIG=" + k8s.Kubeconfig,
			"PATH=" + program("") + ":" + tool("") + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		}}), shown
	}
	label := map[string]string{"app": "kpng-alpine"}
	for _, pod := range []cluster.Pod{
		{Namespace: "default", Name: "here", Node: nodeA, Labels: label, IPs: []string{"11.0.2.2", "1100::202"}},
		{Namespace: "default", Name: "there", Node: nodeB, Labels: label, IPs: []string{"11.0.1.2", "1100::102"}},
	} {
		require.NoError(t, k8s.AddPod(t.Context(), pod))
	}

	apply, _ := shell("kubectl apply -f examples/pipe-exec/manifests/kpng-example-app.yaml")
	code, err := apply.Wait(patience)
	require.NoError(t, err)
	require.Zero(t, code, "kubectl apply")
	s.slices("kpng-example", 4)

	shell("kpng kube --service-proxy-name=kpng-example to-api")
	_, json := shell("kpng-json | jq")
	_, callout := shell("CALLOUT=jq kpng-callout")

	want := dedent(`
		default/kpng-example external=10.0.0.55,1000::55 headless 6000/TCP>6000
		- 11.0.1.2
		- 11.0.2.2 here
		- 1100::102
		- 1100::202 here`)
	for name, shown := range map[string]*proc.Buffer{"kpng-json": json, "kpng-callout": callout} {
		eventually(t, func() error {
			items, err := parseItems(plain(shown.String()))
			if err != nil || len(items) == 0 {
				return fmt.Errorf("%s shows nothing readable: %q, %w", name, shown, err)
			}
			if got := summary(items[len(items)-1:]); got != want {
				return fmt.Errorf("%s shows:\n%s\nwant:\n%s", name, got, want)
			}
			return nil
		})
	}
	require.Contains(t, plain(json.String()), `"Headless": true`)
	require.Equal(t, 1, strings.Count(plain(json.String()), `"kpng-example"`), "one object, shown once:\n%s", json)
}

// terminal is a terminal to write to, and what it shows: jq, for one, writes at once only to a terminal.
func terminal(t *testing.T) (*os.File, *proc.Buffer) {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	var number int
	raw, err := control.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
		if err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}))
	require.NoError(t, err)
	screen, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	shown := &proc.Buffer{}
	go func() {
		_, _ = io.Copy(shown, control) // ends with an error when the last writer is gone
	}()
	t.Cleanup(func() {
		screen.Close()
		control.Close()
		if t.Failed() {
			t.Logf("terminal:\n%s", tail(shown.String()))
		}
	})
	return screen, shown
}

var escapes = regexp.MustCompile("\x1b\\[[0-9;]*m")

// plain is text without colors.
func plain(text string) string { return escapes.ReplaceAllString(text, "") }
