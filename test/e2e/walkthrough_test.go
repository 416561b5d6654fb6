// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/proc"
)

// TestWalkthrough does what the README tells a newcomer to do, word for word: same commands, default addresses, the
// node's name found by itself.
func TestWalkthrough(t *testing.T) {
	s := &scene{t: t, namespace: "default", proxyName: "kpng-example"}
	shell := func(command string) *proc.Process {
		return start(t, proc.Spec{Path: "/bin/sh", Args: []string{"-c", command}, Dir: repo, Env: []string{
			"KUBECONFIG=" + k8s.Kubeconfig,
			"PATH=" + program("") + ":" + tool("") + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		}})
	}
	label := map[string]string{"app": "kpng-alpine"}
	for _, pod := range []cluster.Pod{
		{Namespace: "default", Name: "here", Node: nodeA, Labels: label, IPs: []string{"11.0.2.2", "1100::202"}},
		{Namespace: "default", Name: "there", Node: nodeB, Labels: label, IPs: []string{"11.0.1.2", "1100::102"}},
	} {
		require.NoError(t, k8s.AddPod(t.Context(), pod))
	}

	code, err := shell("kubectl apply -f examples/pipe-exec/manifests/kpng-example-app.yaml").Wait(patience)
	require.NoError(t, err)
	require.Zero(t, code, "kubectl apply")
	s.slices("kpng-example", 4)

	shell("kpng kube --service-proxy-name=kpng-example to-api")
	json := shell("kpng-json | jq")
	callout := shell("CALLOUT=jq kpng-callout")

	want := dedent(`
		default/kpng-example external=10.0.0.55,1000::55 headless 6000/TCP>6000
		- 11.0.1.2
		- 11.0.2.2 here
		- 1100::102
		- 1100::202 here`)
	for _, p := range []*proc.Process{json, callout} {
		eventually(t, func() error {
			items, err := parseItems(p.Stdout.String())
			if err != nil || len(items) == 0 {
				return fmt.Errorf("nothing readable yet: %w", err)
			}
			if got := summary(items[len(items)-1:]); got != want {
				return fmt.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			return nil
		})
	}
	require.Contains(t, json.Stdout.String(), `"Headless": true`)
	require.Equal(t, 1, strings.Count(json.Stdout.String(), `"kpng-example"`), "one object, printed once:\n%s", json.Stdout)
	require.True(t, callout.Running())
}
