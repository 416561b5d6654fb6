// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// TestAPIServerOutage is not parallel: it takes the API server away from all.
func TestAPIServerOutage(t *testing.T) {
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.slices("web", 2)
	k := s.kube()
	s.wantState(k.API, nodeA, webState)
	require.NoError(t, k.ready(t.Context()))

	k8s.StopAPIServer()
	eventually(t, func() error {
		err := k.ready(t.Context())
		if err == nil || !strings.Contains(err.Error(), "stale") {
			return errors.New("/readyz should say that the state is stale, says: " + fmt.Sprint(err))
		}
		return nil
	})
	// The last state is served, to new clients too.
	s.wantState(k.API, nodeA, webState)
	require.True(t, k.Running())

	require.NoError(t, k8s.StartAPIServer(t.Context()))
	eventually(t, func() error { return k.ready(t.Context()) })
	s.wantState(k.API, nodeA, webState)
	s.pod("web-new", nodeA, "10.1.0.2")
	s.wantState(k.API, nodeA, `
		{ns}/web headless http:80/TCP>8080
		- 10.1.0.1 here
		- 10.1.0.2 here
		- 10.2.0.1`)
}

// TestObjectsDeletedDuringAnOutage: what went while kpng was cut off is gone when it is back.
func TestObjectsDeletedDuringAnOutage(t *testing.T) {
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.apply(byHand + "\n---\n" + byHandSlice)
	s.slices("web", 2)
	k := s.kube()
	s.wantState(k.API, nodeA, byHandState+webState)

	k.Signal(sigstop)
	s.kubectl("delete", "service", "web")
	s.kubectl("delete", "endpointslice", "hand-1")
	k8s.StopAPIServer()
	k.Signal(sigcont)
	require.NoError(t, k8s.StartAPIServer(t.Context()))
	s.wantState(k.API, nodeA, `{ns}/hand headless db:5432/TCP>5432`)
}

// TestKpngCrash: a backend that runs while kpng is killed and started again gets no partial and no empty state.
func TestKpngCrash(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.apply(strings.ReplaceAll(web, "name: web", "name: web2"))
	s.slices("web", 2)
	s.slices("web2", 2)
	k := s.kube()
	s.wantState(k.API, nodeA, webState+strings.ReplaceAll(webState, "/web", "/web2"))

	log := filepath.Join(t.TempDir(), "runs")
	script := filepath.Join(t.TempDir(), "record")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nprintf '%s %s\\n' \"$(grep -c '\"Namespace\"')\" \"$KPNG_REASON\" >> "+log+"\n"), 0o700))
	backend := start(t, proc.Spec{Path: program("kpng-callout"), Args: []string{"--api", k.API, "--node-name", nodeA}, Env: []string{"CALLOUT=" + script}})
	changes := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA, "--output=changes"}})
	runs := func() string { text, _ := os.ReadFile(log); return string(text) }
	eventually(t, func() error {
		if runs() == "" || strings.Count(changes.Stdout.String(), "\n") < 2 {
			return errNotYet
		}
		return nil
	})

	for range 3 {
		k.restart(t)
		s.wantState(k.API, nodeA, webState+strings.ReplaceAll(webState, "/web", "/web2"))
		time.Sleep(time.Second) // time for the clients to come back and do wrong
	}
	// A change is still followed, which shows that they are back.
	s.pod("web-new", nodeA, "10.1.0.2")
	eventually(t, func() error {
		if !strings.Contains(changes.Stdout.String(), "10.1.0.2") {
			return errNotYet
		}
		return nil
	})
	eventually(t, func() error {
		if strings.Count(runs(), "\n") < 2 {
			return errNotYet
		}
		return nil
	})
	for line := range strings.Lines(runs()) {
		require.Regexp(t, `^2 (start|change|retry)\n`, line, "each run has both services:\n%s", runs())
	}
	require.NotContains(t, changes.Stdout.String(), `"Op":"delete"`)
	require.True(t, backend.Running())
}

// TestKpngGoneForAWhile: changes made while kpng was down reach a backend that waited, as a difference.
func TestKpngGoneForAWhile(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.apply(byHand + "\n---\n" + byHandSlice)
	s.slices("web", 2)
	k := s.kube()
	s.wantState(k.API, nodeA, byHandState+webState)
	changes := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA, "--output=changes"}})
	eventually(t, func() error {
		if strings.Count(changes.Stdout.String(), "\n") < 2 {
			return errNotYet
		}
		return nil
	})
	before := len(changes.Stdout.String())
	k.Kill()
	s.kubectl("delete", "service", "web")
	k.restart(t)
	eventually(t, func() error {
		if !strings.Contains(changes.Stdout.String(), `"Op":"delete"`) {
			return errNotYet
		}
		return nil
	})
	after := changes.Stdout.String()[before:]
	require.Equal(t, 1, strings.Count(after, "\n"), "only the deletion is told:\n%s", after)
	require.Contains(t, after, "web")
}

func TestTwoBackendsOnOneController(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	k := s.kube()
	json := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeA}})
	callout := start(t, proc.Spec{Path: program("kpng-callout"), Args: []string{"--api", k.API, "--node-name", nodeB, "--", "/bin/cat"}})
	// A third one that never reads is no one's concern.
	asleep := start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API, "--node-name", nodeB}})
	both := func(address string) {
		for _, p := range []*proc.Process{json, callout} {
			eventually(t, func() error {
				if !strings.Contains(p.Stdout.String(), address) {
					return fmt.Errorf("%s does not know %s", p.Name, address)
				}
				return nil
			})
		}
	}
	both("10.2.0.1")
	asleep.Signal(sigstop)
	s.pod("web-new", nodeA, "10.1.0.2")
	both("10.1.0.2")
	k.restart(t)
	s.pod("web-newer", nodeA, "10.1.0.3")
	both("10.1.0.3")
	asleep.Signal(sigcont)
	eventually(t, func() error {
		if !strings.Contains(asleep.Stdout.String(), "10.1.0.3") {
			return errNotYet
		}
		return nil
	})
}

// TestStopsOnSignals: a signal ends each program with status 0, and soon.
func TestStopsOnSignals(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.wantState(k.API, nodeA, ``)
	for _, p := range []*proc.Process{
		start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", k.API}}),
		start(t, proc.Spec{Path: program("kpng-callout"), Args: []string{"--api", k.API, "--", "sleep", "1000"}}),
		start(t, proc.Spec{Path: program("kpng-json"), Args: []string{"--api", "unix:///nowhere.sock"}}),
		k.Process,
	} {
		time.Sleep(300 * time.Millisecond) // let it get to work
		p.Signal(sigterm)
		code, err := p.Wait(20 * time.Second)
		require.NoError(t, err)
		require.Zero(t, code, "%s\n%s", p.Name, p.Stderr)
	}
}
