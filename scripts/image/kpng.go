// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// nobody is the user of the image, by number, as Kubernetes' runAsNonRoot needs it.
const nobody = "65532:65532"

const passwd = "root:x:0:0:root:/:/nologin\nnonroot:x:65532:65532:nonroot:/:/nologin\n"

var labels = map[string]string{
	"org.opencontainers.image.title":    "kpng",
	"org.opencontainers.image.licenses": "Apache-2.0",
}

// kpngImage is the image of our binaries, for all platforms.
func kpngImage(ctx context.Context, o *options) (*image, error) {
	img := &image{name: "kpng"}
	for _, arch := range o.platforms {
		files, err := o.binaries(ctx, arch, "./cmd/...")
		if err != nil {
			return nil, err
		}
		files["etc/passwd"] = entry{mode: 0o644, data: []byte(passwd)}
		files["tmp"] = entry{mode: 0o1777, dir: true}
		l, err := files.layer(o.created)
		if err != nil {
			return nil, err
		}
		img.variants = append(img.variants, variant{arch: arch, layers: []*layer{l}, run: runConfig{
			User: nobody, Env: []string{"PATH=/"}, Entrypoint: []string{"/kpng"}, WorkingDir: "/", Labels: labels,
		}})
	}
	return img, nil
}

// binaries builds static programs. They come into the root of the tree.
func (o *options) binaries(ctx context.Context, arch string, packages ...string) (tree, error) {
	dir, err := os.MkdirTemp("", "kpng-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	args := append([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = o.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building %s for linux/%s: %w\n%s", strings.Join(packages, " "), arch, err, out)
	}
	built, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	files := tree{}
	for _, path := range built {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files[filepath.Base(path)] = entry{mode: 0o755, data: data}
	}
	return files, nil
}
