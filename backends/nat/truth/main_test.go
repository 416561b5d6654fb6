// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/test/bench/apiserver"
	"sigs.k8s.io/kpng/test/e2e/isolate"
)

// namespace of all Services.
const namespace = "truth"

// api is the API server that all proxies follow.
var api *apiserver.Server

// repo is the root of the repository.
var repo = func() string {
	dir, err := filepath.Abs("../../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

var kubernetes = filepath.Join(repo, ".cache", "bin")

// kpngProgram is kpng of bin/, or of where KPNG_BIN says.
func kpngProgram() string {
	if dir := os.Getenv("KPNG_BIN"); dir != "" {
		return filepath.Join(dir, "kpng")
	}
	return filepath.Join(repo, "bin", "kpng")
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := isolate.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, program := range []string{kpngProgram(), filepath.Join(kubernetes, "kube-proxy")} {
		if _, err := os.Stat(program); err != nil {
			return fail(fmt.Errorf("%w (run `make build kubernetes`)", err))
		}
	}
	dir, err := os.MkdirTemp("", "kpng-truth-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	if api, err = apiserver.Start(ctx, kubernetes, dir); err != nil {
		return fail(err)
	}
	defer api.Stop()
	if err := errors.Join(api.AddNamespace(ctx, namespace), addNode(ctx, "n1", "zone-a"), addNode(ctx, "n2", "zone-b")); err != nil {
		return fail(err)
	}
	return m.Run()
}

// addNode makes a node with the addresses that it has in each network.
func addNode(ctx context.Context, name, zone string) error {
	if err := api.AddNode(ctx, name, zone); err != nil {
		return err
	}
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, f := range nstest.Families {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: f.Addr(name).String()})
	}
	return api.Do(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", node, nil)
}
