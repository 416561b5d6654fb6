// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
	"sigs.k8s.io/kpng/backends/internal/dataplane/nftables"
)

func nftablesFlavour() flavour {
	return flavour{
		name: "nftables",
		open: func(t *testing.T, owner string) dataplane.Writer {
			w, err := nftables.New(options(owner))
			require.NoError(t, err)
			return w
		},
		flush:   []string{"nft flush ruleset"},
		foreign: []string{"nft add table ip admin", "nft add chain ip admin pre { type nat hook prerouting priority -100; }", "nft add rule ip admin pre tcp dport 1 return"},
		dump:    []string{"nft list ruleset"},
	}
}
