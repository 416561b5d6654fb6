// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/internal/netlab"
)

// loaded is an image as another program would read it from its tar.
type loaded struct {
	ref      string
	variants map[string]loadedVariant // by architecture
}

type loadedVariant struct {
	config imageConfig
	layers [][]byte // plain tars
}

// load reads a tar file and checks every digest and size in it, and that every blob is named by another.
func load(t *testing.T, archive []byte) loaded {
	t.Helper()
	files := map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		data, err := io.ReadAll(tr)
		require.NoError(t, err)
		if h.Typeflag == tar.TypeReg {
			files[h.Name] = data
		}
	}
	require.JSONEq(t, `{"imageLayoutVersion":"1.0.0"}`, string(files["oci-layout"]))
	used := map[string]bool{}
	get := func(d descriptor) []byte {
		data, ok := files[blobPath(d.Digest)]
		require.True(t, ok, "%s is missing", d.Digest)
		require.Equal(t, d.Digest, digest(data))
		require.Equal(t, d.Size, len(data))
		used[blobPath(d.Digest)] = true
		return data
	}
	decode := func(data []byte, into any) {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		require.NoError(t, dec.Decode(into))
	}
	var top, archs index
	decode(files["index.json"], &top)
	require.Len(t, top.Manifests, 1)
	decode(get(top.Manifests[0]), &archs)
	img := loaded{ref: top.Manifests[0].Annotations["io.containerd.image.name"], variants: map[string]loadedVariant{}}
	var docker []dockerManifest
	decode(files["manifest.json"], &docker)
	require.Len(t, docker, 1)
	require.Equal(t, []string{img.ref}, docker[0].RepoTags)
	dockers := false
	for _, d := range archs.Manifests {
		var m manifest
		decode(get(d), &m)
		v := loadedVariant{}
		decode(get(m.Config), &v.config)
		require.Equal(t, d.Platform.Architecture, v.config.Architecture)
		require.Len(t, v.config.RootFS.DiffIDs, len(m.Layers))
		for i, l := range m.Layers {
			z, err := gzip.NewReader(bytes.NewReader(get(l)))
			require.NoError(t, err)
			plain, err := io.ReadAll(z)
			require.NoError(t, err)
			require.Equal(t, v.config.RootFS.DiffIDs[i], digest(plain))
			v.layers = append(v.layers, plain)
		}
		dockers = dockers || docker[0].Config == blobPath(m.Config.Digest) && len(docker[0].Layers) == len(m.Layers) && docker[0].Layers[0] == blobPath(m.Layers[0].Digest)
		img.variants[d.Platform.Architecture] = v
	}
	require.True(t, dockers, "manifest.json names no variant")
	for name := range files {
		require.True(t, used[name] || !strings.HasPrefix(name, "blobs/"), "%s is not used", name)
	}
	return img
}

// unpack makes a root file system of a variant.
func (v loadedVariant) unpack(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, l := range v.layers {
		for tr := tar.NewReader(bytes.NewReader(l)); ; {
			h, err := tr.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			path := filepath.Join(root, h.Name)
			switch h.Typeflag {
			case tar.TypeDir:
				if err = os.Mkdir(path, 0o700); os.IsExist(err) {
					err = nil
				}
			case tar.TypeSymlink:
				require.NoError(t, os.Symlink(h.Linkname, path))
				continue
			default:
				var data []byte
				data, err = io.ReadAll(tr)
				require.NoError(t, err)
				err = os.WriteFile(path, data, 0o600)
			}
			require.NoError(t, err)
			require.NoError(t, os.Chmod(path, h.FileInfo().Mode()))
		}
	}
	return root
}

func TestLayout(t *testing.T) {
	build := func(created time.Time) []byte {
		img := &image{name: "x"}
		for _, arch := range []string{"amd64", "arm64", "riscv64"} {
			l, err := tree{"a/b/" + arch: {mode: 0o755, data: []byte("hello")}, "l": {link: "a/b"}, "tmp": {dir: true, mode: 0o1777}}.layer(created)
			require.NoError(t, err)
			img.variants = append(img.variants, variant{arch: arch, layers: []*layer{l}, run: runConfig{User: nobody}})
		}
		var b bytes.Buffer
		_, err := img.writeLayout(&b, "v1", created)
		require.NoError(t, err)
		return b.Bytes()
	}
	first := build(time.Unix(0, 0).UTC())
	require.Equal(t, first, build(time.Unix(0, 0).UTC()), "the same input must give the same bytes")
	require.NotEqual(t, first, build(time.Unix(1, 0).UTC()))
	img := load(t, first)
	require.Equal(t, "x:v1", img.ref)
	require.Len(t, img.variants, 3)
	root := img.variants["riscv64"].unpack(t)
	data, err := os.ReadFile(filepath.Join(root, "l", "riscv64"))
	require.NoError(t, err)
	require.Equal(t, "hello", string(data))
	info, err := os.Stat(filepath.Join(root, "tmp"))
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, info.Mode())
}

func TestImages(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip(errNoPackages)
	}
	// A program of its own, because the race detector would make packing take minutes.
	program := filepath.Join(t.TempDir(), "image")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	names := []string{"kpng", iptablesName, exampleName}
	var digests [2][]string
	dir := t.TempDir()
	for i := range digests {
		out, err := exec.CommandContext(t.Context(), program, "-o", dir, "-tag", "test", "-platforms", "linux/"+runtime.GOARCH).CombinedOutput()
		require.NoError(t, err, "%s", out)
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(dir, name+".tar"))
			require.NoError(t, err)
			digests[i] = append(digests[i], digest(data))
		}
	}
	require.Equal(t, digests[0], digests[1], "the same input must give the same bytes")
	left, err := filepath.Glob(filepath.Join(dir, ".*"))
	require.NoError(t, err)
	require.Empty(t, left)

	t.Run("kpng", func(t *testing.T) { tryKpng(t, filepath.Join(dir, "kpng.tar")) })
	t.Run("iptables", func(t *testing.T) { tryIptables(t, filepath.Join(dir, iptablesName+".tar")) })
	t.Run("example", func(t *testing.T) { tryExample(t, filepath.Join(dir, exampleName+".tar")) })
}

// rootOf unpacks the image for this machine. Programs in it can be run by root only.
func rootOf(t *testing.T, file, ref string) (string, runConfig) {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	img := load(t, data)
	require.Equal(t, ref, img.ref)
	v := img.variants[runtime.GOARCH]
	if os.Getuid() != 0 {
		t.Skip("chroot needs root")
	}
	return v.unpack(t), v.config.Config
}

func tryKpng(t *testing.T, file string) {
	root, config := rootOf(t, file, "kpng:test")
	require.Equal(t, "65532:65532", config.User)
	require.Equal(t, []string{"/kpng"}, config.Entrypoint)
	require.NoError(t, os.Chmod(root, 0o755))
	for dir := root; dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // nobody must get there
	}
	for _, name := range []string{"kpng", "kpng-json", "kpng-callout", "kpng-allip", "kpng-nat"} {
		cmd := exec.Command("/"+name, "version")
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		cmd.Dir = "/"
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, fmt.Sprintf(`^%s \S+.* linux/%s\n$`, name, runtime.GOARCH), string(out))
	}
}

// runInside runs a program with nothing but what is in the image, on a kernel's own network.
func runInside(t *testing.T, host *netlab.Host, root string, config runConfig, stdin []byte, name string, args ...string) string {
	t.Helper()
	cmd := host.Command(t.Context(), name, args...)
	cmd.SysProcAttr.Chroot = root
	cmd.Dir, cmd.Env, cmd.Stdin = "/", config.Env, bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// tryIptables runs both flavors of iptables, and the programs that call them.
func tryIptables(t *testing.T, file string) {
	root, config := rootOf(t, file, iptablesName+":test")
	require.Equal(t, "65532:65532", config.User)
	require.Equal(t, []string{"/kpng"}, config.Entrypoint)
	host := netlab.ForTest(t).Host("node")
	for _, program := range []string{"iptables", "ip6tables", "iptables-legacy", "ip6tables-legacy"} {
		rules := "*nat\n:KPNG-TEST -\n-A KPNG-TEST -j ACCEPT\nCOMMIT\n"
		runInside(t, host, root, config, []byte(rules), "/usr/sbin/"+program+"-restore", "--noflush")
		require.Contains(t, runInside(t, host, root, config, nil, "/usr/sbin/"+program+"-save", "-t", "nat"), "-A KPNG-TEST -j ACCEPT\n", program)
	}
	require.Contains(t, runInside(t, host, root, config, nil, "/kpng", "version"), "kpng ")
	for _, name := range []string{"/kpng-allip", "/kpng-nat"} {
		runInside(t, host, root, config, nil, name, "--cleanup")
	}
	require.NoFileExists(t, filepath.Join(root, "usr/bin/sh"), "a shell is of use to intruders only")
}

// tryExample runs the script of the image, with nothing but what is in the image, against a real kernel.
func tryExample(t *testing.T, file string) {
	root, config := rootOf(t, file, exampleName+":test")
	require.Equal(t, []string{"/kpng-callout"}, config.Entrypoint)
	host := netlab.ForTest(t).Host("node")
	inside := func(stdin []byte, name string, args ...string) string {
		return runInside(t, host, root, config, stdin, name, args...)
	}
	// What every container has.
	require.NoError(t, os.MkdirAll(filepath.Join(root, "dev"), 0o755))
	null := filepath.Join(root, "dev", "null")
	require.NoError(t, syscall.Mknod(null, syscall.S_IFCHR|0o666, 1<<8|3))
	// By this the script tells whether the kernel has IPv6.
	require.NoError(t, os.MkdirAll(filepath.Join(root, "proc/net"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/net/if_inet6"), nil, 0o444))

	require.Contains(t, inside(nil, "/kpng-callout", "version"), "kpng-callout ")
	items, err := os.ReadFile("../../examples/pipe-exec/testdata/walkthrough.json")
	require.NoError(t, err)
	inside(items, "/kpng-example-allip")
	require.Contains(t, inside(nil, "/usr/sbin/iptables", "-t", "nat", "-S"), "--to-destination 11.0.2.2\n")
	require.Contains(t, inside(nil, "/usr/sbin/ip6tables", "-t", "nat", "-S"), "--to-destination 1100::202\n")
	inside(nil, "/kpng-example-allip", "cleanup")
	require.NotContains(t, inside(nil, "/usr/sbin/iptables", "-t", "nat", "-S"), "KPNG")

	copyrights, err := filepath.Glob(filepath.Join(root, "usr/share/doc/*/copyright"))
	require.NoError(t, err)
	require.NotEmpty(t, copyrights)
	packages, err := os.ReadFile(filepath.Join(root, "etc/kpng-packages"))
	require.NoError(t, err)
	require.Regexp(t, `(?m)^iptables_`, string(packages))
}

func TestParse(t *testing.T) {
	o, err := parse([]string{"-platforms", "linux/arm64", "-tag", "x"})
	require.NoError(t, err)
	require.Equal(t, []string{"arm64"}, o.platforms)
	require.Zero(t, o.created.Unix())
	t.Setenv("SOURCE_DATE_EPOCH", "7")
	o, err = parse(nil)
	require.NoError(t, err)
	require.EqualValues(t, 7, o.created.Unix())
	require.Equal(t, []string{"amd64", "arm64"}, o.platforms)
	for _, bad := range [][]string{{"-platforms", "windows/amd64"}, {"-platforms", ""}, {"x"}, {"-x"}} {
		_, err := parse(bad)
		require.Error(t, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	_, err = parse(nil)
	require.ErrorContains(t, err, "SOURCE_DATE_EPOCH")
}

// Where there are no Debian packages the error says so, and kpng.tar is made nevertheless.
func TestNotDebian(t *testing.T) {
	var written []string
	o := &options{out: t.TempDir()}
	write := func(img *image) error { written = append(written, img.name); return nil }
	kpng := func(context.Context, *options) (*image, error) { return &image{name: "kpng"}, nil }
	t.Setenv("PATH", t.TempDir())
	err := build(t.Context(), o, write, []maker{{iptablesName, iptablesImage}, {"kpng", kpng}, {exampleName, exampleImage}})
	require.ErrorIs(t, err, errNoPackages)
	require.ErrorContains(t, err, "not made: kpng-iptables.tar, kpng-pipe-exec.tar")
	require.Equal(t, []string{"kpng"}, written)
}
