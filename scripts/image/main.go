// SPDX-License-Identifier: Apache-2.0

// Command image builds kpng's container images without Docker, as OCI image layouts in tar files that podman, docker,
// containerd (ctr images import) and skopeo load:
//
//   - kpng.tar: nothing but our static binaries, all of them, for several architectures, and a user who is nobody: enough for
//     kpng and for kpng-nat on nftables, which needs no program but itself;
//   - kpng-iptables.tar: kpng, kpng-allip and kpng-nat with iptables, nft and legacy, from the packages of the Debian or Ubuntu
//     this runs on, for this machine's architecture;
//   - kpng-pipe-exec.tar: for the backend of examples/pipe-exec: kpng-callout, the script, and the shell, jq and iptables that it
//     needs, made the same way.
//
// The same sources (and, where there are packages, the same versions of them) give the same bytes: file times are SOURCE_DATE_EPOCH, or 0.
//
// Run it by `make image` or `go run ./scripts/image` in the repository.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// options are the flags.
type options struct {
	root      string // of the repository
	out, tag  string
	platforms []string
	created   time.Time
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if o.root, err = repository(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	return build(ctx, o, o.write, []maker{{"kpng", kpngImage}, {iptablesName, iptablesImage}, {exampleName, exampleImage}})
}

// maker makes the image of a name.
type maker struct {
	name string
	make func(context.Context, *options) (*image, error)
}

// build makes the images, each as soon as it is ready. Where there are no packages, those that need none are made.
func build(ctx context.Context, o *options, write func(*image) error, makers []maker) error {
	var missing []string
	for _, m := range makers {
		img, err := m.make(ctx, o)
		if errors.Is(err, errNoPackages) {
			missing = append(missing, m.name+".tar")
			continue
		}
		if err != nil {
			return err
		}
		if err := write(img); err != nil {
			return err
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not made: %s: %w", strings.Join(missing, ", "), errNoPackages)
	}
	return nil
}

func parse(args []string) (*options, error) {
	o := &options{created: time.Unix(0, 0).UTC()}
	var platforms string
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.StringVar(&o.out, "o", "dist", "folder for the tar files")
	flags.StringVar(&o.tag, "tag", "latest", "tag of the images")
	flags.StringVar(&platforms, "platforms", "linux/amd64,linux/arm64", "what kpng.tar is for")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	for _, p := range strings.Split(platforms, ",") {
		arch, ok := strings.CutPrefix(p, "linux/")
		if !ok || arch == "" {
			return nil, fmt.Errorf("-platforms: %q: want linux/ARCHITECTURE", p)
		}
		o.platforms = append(o.platforms, arch)
	}
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		seconds, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH: want seconds since 1970: %w", err)
		}
		o.created = time.Unix(seconds, 0).UTC()
	}
	return o, nil
}

func repository(ctx context.Context) (string, error) {
	out, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Path}} {{.Dir}}")
	path, dir, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if err != nil || path != "sigs.k8s.io/kpng" {
		return "", errors.Join(errors.New("run it inside kpng's repository"), err)
	}
	return dir, nil
}

// write makes the tar file of an image, at once, and says so.
func (o *options) write(img *image) (err error) {
	path := filepath.Join(o.out, img.name+".tar")
	f, err := os.CreateTemp(o.out, "."+img.name+"-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // nothing after the rename
	digest, err := img.writeLayout(f, o.tag, o.created)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	fmt.Printf("%s  %s:%s  %s  %s\n", path, img.name, o.tag, strings.Join(img.architectures(), ","), digest)
	return nil
}
