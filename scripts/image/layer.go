// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// entry is a file, a link or a folder of a layer.
type entry struct {
	mode int64  // permissions
	data []byte // of a file
	link string // target of a symbolic link
	dir  bool
	uid  int
	gid  int
}

// tree is a file system: entries by slash-separated paths without a leading slash.
type tree map[string]entry

// layer is a tree as images hold it.
type layer struct {
	diffID string // of the plain tar
	blob   blob   // the compressed one
}

// blob is content named by its digest.
type blob struct {
	digest string // sha256:...
	data   []byte
}

func newBlob(data []byte) blob { return blob{digest: digest(data), data: data} }

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// layer packs the tree, in an order and with times that depend on nothing else.
func (t tree) layer(modified time.Time) (*layer, error) {
	var plain bytes.Buffer
	if err := t.writeTar(&plain, modified); err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed) // the best compression takes three times as long for one percent
	if _, err := z.Write(plain.Bytes()); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return &layer{diffID: digest(plain.Bytes()), blob: newBlob(packed.Bytes())}, nil
}

// writeTar writes the tree as a plain tar.
func (t tree) writeTar(w io.Writer, modified time.Time) error {
	t.addParents()
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	slices.Sort(names) // parents come before what they hold
	tw := tar.NewWriter(w)
	for _, name := range names {
		if err := writeEntry(tw, name, t[name], modified); err != nil {
			return err
		}
	}
	return tw.Close()
}

func (t tree) addParents() {
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := t[dir]; !ok {
				t[dir] = entry{dir: true, mode: 0o755}
			}
		}
	}
}

func writeEntry(w *tar.Writer, name string, e entry, modified time.Time) error {
	h := &tar.Header{Name: name, Mode: e.mode, Uid: e.uid, Gid: e.gid, ModTime: modified, Format: tar.FormatPAX}
	switch {
	case e.dir:
		h.Typeflag, h.Name = tar.TypeDir, strings.TrimSuffix(name, "/")+"/"
	case e.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
	default:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.data))
	}
	if err := w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := w.Write(e.data); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
