// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// reason is why kube-proxy and kpng differ, by a heading of docs/kube-proxy.md.
type reason string

const (
	hidesClients  reason = "kube-proxy hides clients that kpng lets pods see"
	halfRanges    reason = "A family without a source range"
	onLoopback    reason = "Node ports on the loopback"
	nodeUnrefused reason = "The node itself and addresses without endpoints"
	perFamily     reason = "The node's health page"
	keepsFlows    reason = "Flows of UDP and SCTP that have nowhere to go"
	unknownPort   reason = "Ports that a cluster IP does not have"
)

// TestDifferencesAreTold: docs/kube-proxy.md has a heading for each reason, and for no other.
func TestDifferencesAreTold(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repo, "docs", "kube-proxy.md"))
	require.NoError(t, err)
	told := map[reason]bool{}
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(strings.TrimSpace(line), "### "); ok {
			told[reason(heading)] = true
		}
	}
	named := map[reason]bool{perFamily: true, keepsFlows: true}
	all := cases()
	c := newChanges(all)
	for _, step := range c.steps() {
		step.ask(all)
	}
	for _, row := range all.rows {
		for _, d := range row.but {
			named[d.why] = true
		}
	}
	require.Equal(t, named, told)
}
