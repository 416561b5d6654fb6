// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
)

const iptablesName = "kpng-iptables"

// debianPath finds what Debian's packages bring, and ours in the root.
const debianPath = "PATH=/usr/sbin:/usr/bin:/sbin:/bin:/"

// iptablesImage is the image for backends that call iptables, of both flavors, for this machine's architecture. It has no shell.
func iptablesImage(ctx context.Context, o *options) (*image, error) {
	base, err := debianTree(ctx, "iptables")
	if err != nil {
		return nil, err
	}
	ours, err := o.binaries(ctx, runtime.GOARCH, "./cmd/kpng", "./cmd/kpng-allip", "./cmd/kpng-nat")
	if err != nil {
		return nil, err
	}
	return o.onPackages(iptablesName, base, ours, runConfig{
		User: nobody, Env: []string{debianPath}, Entrypoint: []string{"/kpng"}, WorkingDir: "/", Labels: labels,
	})
}

// onPackages is an image for this machine's architecture of two layers. The packages come first: they change seldom, so that a
// new version of ours shares them.
func (o *options) onPackages(name string, packages, ours tree, config runConfig) (*image, error) {
	v := variant{arch: runtime.GOARCH, run: config}
	for _, t := range []tree{packages, ours} {
		l, err := t.layer(o.created)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		v.layers = append(v.layers, l)
	}
	return &image{name: name, variants: []variant{v}}, nil
}
