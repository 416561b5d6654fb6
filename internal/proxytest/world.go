// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package proxytest runs the program of a backend that programs the kernel, on a node of a network that has nothing else,
// fed by a server of the test's.
package proxytest

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/localtest"
	"sigs.k8s.io/kpng/internal/netlab"
)

// Patience is for what a loaded machine may take long for.
const Patience = time.Minute

// asProgram tells a process that it is the program under test.
const asProgram = "KPNG_TEST_PROGRAM=1"

// Main is for TestMain. The test binary is the program itself when told so, and gets to make networks.
func Main(m *testing.M, program func()) {
	if os.Getenv("KPNG_TEST_PROGRAM") != "" {
		program()
		return
	}
	if err := netlab.EnsurePrivilege(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

// World is a cluster whose node n2 runs the program.
type World struct {
	T       *testing.T
	Cluster *netlab.Cluster
	Node    *netlab.Node // n2
	Server  *localtest.Server
	// Socket is the server's.
	Socket string
}

// NewWorld builds the cluster; pods serve on these ports, and the client and n1 reach these addresses by way of n2.
func NewWorld(t *testing.T, ports []uint16, addresses ...netip.Addr) *World {
	t.Helper()
	w := &World{T: t, Cluster: netlab.ForTest(t).Cluster(), Socket: filepath.Join(t.TempDir(), "kpng.sock")}
	w.Server = localtest.Start(t, localtest.Unix(w.Socket))
	w.Node = w.Cluster.Nodes[1]
	for _, n := range w.Cluster.Nodes {
		for _, pod := range n.Pods {
			pod.Serve(ports...)
		}
	}
	for _, ip := range addresses {
		prefix, via := netip.PrefixFrom(ip, ip.BitLen()), w.Node.Addr(ip.Is6())
		w.Cluster.Client.Route(prefix, via, "")
		w.Cluster.Nodes[0].Route(prefix, via, "")
	}
	return w
}

// Program is the program on n2, told where the server is, and what it will write to its standard error.
func (w *World) Program(args ...string) (*netlab.Cmd, *bytes.Buffer) {
	args = append([]string{"--node-name=n2", "--api=" + w.Server.Target()}, args...)
	cmd := w.Node.Command(w.T.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram)
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// Start starts the program.
func (w *World) Start(args ...string) *netlab.Cmd {
	w.T.Helper()
	cmd, _ := w.Program(args...)
	require.NoError(w.T, cmd.Start())
	return cmd
}

// Ruleset is everything that the node has for nftables and both kinds of iptables.
func (w *World) Ruleset() string {
	w.T.Helper()
	var all strings.Builder
	for _, tool := range [][]string{
		{"iptables-nft-save"}, {"ip6tables-nft-save"}, {"iptables-legacy-save"}, {"ip6tables-legacy-save"}, {"nft", "list", "ruleset"},
	} {
		out, err := w.Node.Command(w.T.Context(), tool[0], tool[1:]...).Output()
		require.NoError(w.T, err)
		all.Write(out)
	}
	return all.String()
}

// Rules are the lines of the ruleset that name an owner.
func (w *World) Rules(owner string) string {
	w.T.Helper()
	var own strings.Builder
	for line := range strings.Lines(w.Ruleset()) {
		if strings.Contains(strings.ToLower(line), owner) {
			own.WriteString(line)
		}
	}
	return own.String()
}
