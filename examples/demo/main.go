// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command demo shows kpng at work on real packets, in network namespaces of its own. It
//
//  1. makes a network: a client, this node with a pod, another node with a pod ([world]),
//  2. runs kpng on the manifests beside this file, kpng-json, and kpng-callout with the example script, in
//     this node ([programs]),
//  3. sends TCP, UDP and ping from the client to the Service's external IPs, and looks which pod answers and
//     what client address it sees,
//  4. takes the pod's endpoints out of the manifest and looks again, and puts them back,
//  5. cleans up, also when it fails or is interrupted.
//
// Nothing outside its namespaces and a temporary folder is touched. It needs root or user namespaces.
// Run it by `make demo` or `go run ./examples/demo` in the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/kpng/internal/netlab"
)

func main() {
	bin := flag.String("bin", "", "folder with the binaries kpng, kpng-json and kpng-callout (default: build them into bin/)")
	flag.Parse()
	if flag.NArg() > 0 {
		fail(fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	root, err := repository()
	if err != nil {
		fail(err)
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		fail(err)
	}
	// A closed pipe too: `make demo | head` must clean up.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	// Building and installing need the machine's network, so they come before a namespace of our own.
	if *bin == "" {
		*bin = filepath.Join(root, "bin")
		if err := prepare(ctx, root, *bin); err != nil {
			fail(err)
		}
		os.Args = append(os.Args, "-bin="+*bin)
	}
	if err := netlab.EnsurePrivilege(); err != nil {
		fail(err)
	}
	d := &demo{root: root, bin: *bin, out: os.Stdout}
	if err := d.run(ctx); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	os.Exit(1)
}

// repository finds the root of the repository from the current folder.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module sigs.k8s.io/kpng\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run it inside kpng's repository")
		}
		dir = filepath.Dir(dir)
	}
}

// prepare builds the binaries and has missing tools installed or named. Both take no time when all is there.
func prepare(ctx context.Context, root, bin string) error {
	for _, args := range [][]string{
		{filepath.Join(root, "scripts", "install-tools"), "demo"},
		{"go", "build", "-trimpath", "-o", bin + "/", "./cmd/kpng", "./cmd/kpng-json", "./cmd/kpng-callout"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
		}
	}
	return nil
}

// patience bounds every wait: for a program to start, for an edit to take effect.
const patience = 20 * time.Second
