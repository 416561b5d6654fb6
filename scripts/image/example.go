// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
)

const exampleName = "kpng-pipe-exec"

// exampleImage is the image for examples/pipe-exec, for this machine's architecture.
func exampleImage(ctx context.Context, o *options) (*image, error) {
	base, err := debianTree(ctx, "busybox-static", "iptables", "jq")
	if err != nil {
		return nil, err
	}
	ours, err := o.binaries(ctx, runtime.GOARCH, "./cmd/kpng-callout", "./cmd/kpng-json")
	if err != nil {
		return nil, err
	}
	scripts, err := filepath.Glob(filepath.Join(o.root, "examples", "pipe-exec", "scripts", "*"))
	if err != nil || len(scripts) == 0 {
		return nil, errors.Join(err, errors.New("examples/pipe-exec/scripts is empty"))
	}
	for _, s := range scripts {
		data, err := os.ReadFile(s)
		if err != nil {
			return nil, err
		}
		ours[filepath.Base(s)] = entry{mode: 0o755, data: data}
	}
	return o.onPackages(exampleName, base, ours, runConfig{
		Env:        []string{debianPath, "CALLOUT=/kpng-example-allip"},
		Entrypoint: []string{"/kpng-callout"}, WorkingDir: "/", Labels: labels,
	})
}
