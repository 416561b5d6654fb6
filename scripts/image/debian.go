// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// errNoPackages says that this is not Debian or one of its kin.
var errNoPackages = errors.New("what is made of Debian packages needs apt-get, apt-cache and dpkg-deb: build it on Debian or Ubuntu")

// notNeeded are dependencies that are about installing packages, not about running what is in them.
var notNeeded = []string{"dpkg", "debconf", "debconf-2.0", "cdebconf", "perl-base"}

// notCopied are folders that programs do not need. The packages' copyright files stay.
var notCopied = []string{"usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/", "usr/share/initramfs-tools/", "usr/share/info/"}

// debianTree is the content of Debian packages and what they depend on, without their documentation, laid out as after an installation.
func debianTree(ctx context.Context, packages ...string) (tree, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, errNoPackages
		}
	}
	closure, err := dependencies(ctx, packages)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kpng-debs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	// apt's own user must be able to write there.
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	if _, err := output(ctx, dir, "apt-get", append([]string{"-q", "download"}, closure...)...); err != nil {
		return nil, err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	files := tree{}
	var versions bytes.Buffer
	for _, deb := range debs { // Glob sorts
		content, err := output(ctx, dir, "dpkg-deb", "--fsys-tarfile", deb)
		if err != nil {
			return nil, err
		}
		if err := files.addTar(bytes.NewReader(content)); err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
		fmt.Fprintln(&versions, strings.TrimSuffix(filepath.Base(deb), ".deb"))
	}
	files["etc/kpng-packages"] = entry{mode: 0o644, data: versions.Bytes()}
	return files, files.install(ctx)
}

// dependencies are the packages and all that they depend on.
func dependencies(ctx context.Context, packages []string) ([]string, error) {
	args := append([]string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks",
		"--no-replaces", "--no-enhances"}, packages...)
	out, err := output(ctx, "", "apt-cache", args...)
	if err != nil && os.Getuid() == 0 { // a fresh machine has no package lists
		if _, err := output(ctx, "", "apt-get", "-q", "update"); err != nil {
			return nil, err
		}
		out, err = output(ctx, "", "apt-cache", args...)
	}
	if err != nil {
		return nil, fmt.Errorf("%w (is `apt-get update` needed?)", err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name := strings.TrimSpace(line)
		// Indented lines tell why; <names> are virtual.
		if line[0] == ' ' || strings.HasPrefix(name, "<") || slices.Contains(notNeeded, name) {
			continue
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// addTar adds what a package holds, with the merged /usr that Debian has had since 12.
func (t tree) addTar(r io.Reader) error {
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := merged(path.Clean(strings.TrimPrefix(h.Name, "./")))
		if name == "." || slices.ContainsFunc(notCopied, func(dir string) bool { return strings.HasPrefix(name+"/", dir) }) {
			continue
		}
		if strings.HasPrefix(name, "usr/share/doc/") && h.Typeflag != tar.TypeDir && path.Base(name) != "copyright" {
			continue
		}
		e := entry{mode: h.Mode & 0o7777, uid: h.Uid, gid: h.Gid}
		switch h.Typeflag {
		case tar.TypeDir:
			e.dir = true
		case tar.TypeSymlink:
			e.link = h.Linkname
		case tar.TypeLink:
			e = t[merged(path.Clean(strings.TrimPrefix(h.Linkname, "./")))]
		case tar.TypeReg:
			if e.data, err = io.ReadAll(tr); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s: a file of type %q", name, h.Typeflag)
		}
		t[name] = e
	}
}

var mergedDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// merged is where a path is since /bin, /lib and the like are links into /usr.
func merged(name string) string {
	first, _, _ := strings.Cut(name, "/")
	if slices.Contains(mergedDirs, first) {
		return "usr/" + name
	}
	return name
}

// install does what the packages' scripts would: links for the commands of busybox, if that is there, and for the nft flavour of
// iptables.
func (t tree) install(ctx context.Context) error {
	for _, dir := range mergedDirs {
		if _, ok := t["usr/"+dir]; ok {
			t[dir] = entry{link: "usr/" + dir}
		}
	}
	t["tmp"] = entry{mode: 0o1777, dir: true}
	t["run"] = entry{mode: 0o755, dir: true}
	t["etc/passwd"] = entry{mode: 0o644, data: []byte(passwd)}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			t["usr/sbin/"+family+suffix] = entry{link: family + "-nft" + suffix}
		}
	}
	if program, ok := t["usr/bin/busybox"]; ok {
		return t.linkBusybox(ctx, program)
	}
	return nil
}

func (t tree) linkBusybox(ctx context.Context, program entry) error {
	dir, err := os.MkdirTemp("", "kpng-busybox-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "busybox")
	if err := os.WriteFile(file, program.data, 0o755); err != nil {
		return err
	}
	commands, err := output(ctx, dir, file, "--list")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(commands)) {
		_, inBin := t["usr/bin/"+name]
		_, inSbin := t["usr/sbin/"+name]
		if !inBin && !inSbin {
			t["usr/bin/"+name] = entry{link: "busybox"}
		}
	}
	return nil
}

func output(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
