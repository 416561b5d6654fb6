// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the real binaries (bin/, built by `make build`) on a real Kubernetes control plane (.cache/bin,
// built by `make kubernetes`).
//
// The whole test process moves into namespaces of its own: the default ports of kpng are free there, whatever runs
// on the machine, nothing of a test can be reached from, or reach, another machine, and nothing outlives it.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/kpng/test/e2e/cluster"
	"sigs.k8s.io/kpng/test/e2e/isolate"
)

// The nodes of the cluster. nodeA has the machine's name, which is what kpng's clients take for their node by default.
var nodeA = hostname()

const (
	nodeB = "node-b"
	zoneA = "zone-a"
	zoneB = "zone-b"
)

// k8s is the control plane that all tests share; each has a namespace and a service-proxy-name of its own.
var k8s *cluster.Cluster

// repo is the root of the repository.
var repo = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

func TestMain(m *testing.M) {
	flag.Parse()
	if err := isolate.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kpng-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)

	ctx := context.Background()
	k8s, err = cluster.Start(ctx, filepath.Join(repo, ".cache", "bin"), dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer k8s.Stop()
	if err := errors.Join(k8s.AddNode(ctx, nodeA, zoneA), k8s.AddNode(ctx, nodeB, zoneB)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		panic(err)
	}
	return strings.ToLower(name)
}
