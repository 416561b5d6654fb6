// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
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
	img := &image{name: exampleName}
	v := variant{arch: runtime.GOARCH, run: runConfig{
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin:/", "CALLOUT=/kpng-example-allip"},
		Entrypoint: []string{"/kpng-callout"}, WorkingDir: "/", Labels: labels,
	}}
	// The packages first: they change seldom, so that a new version of ours shares them.
	for _, t := range []tree{base, ours} {
		l, err := t.layer(o.created)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", exampleName, err)
		}
		v.layers = append(v.layers, l)
	}
	img.variants = []variant{v}
	return img, nil
}
