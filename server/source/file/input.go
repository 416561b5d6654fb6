// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
)

// maxSize of a file: far above any state worth having, and below what reading would harm.
const maxSize = 512 << 20

// inputFile is a file that is read.
type inputFile struct {
	name string
	data []byte
}

// inputNames returns the files of a path: itself, or the manifests of a directory.
func inputNames(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("--input: %w", err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		if isManifest(entry.Name()) {
			names = append(names, filepath.Join(path, entry.Name()))
		}
	}
	return names, nil
}

func isManifest(name string) bool {
	return !strings.HasPrefix(name, ".") && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// readInput reads all files. In a directory, a directory with the name of a manifest is no manifest.
func readInput(path string) ([]inputFile, error) {
	names, err := inputNames(path)
	if err != nil {
		return nil, err
	}
	var files []inputFile
	var errs []error
	for _, name := range names {
		info, err := os.Stat(name)
		switch {
		case err != nil:
			errs = append(errs, err)
			continue
		case info.IsDir():
			continue
		case !info.Mode().IsRegular():
			errs = append(errs, fmt.Errorf("%s: not a regular file", name))
			continue
		case info.Size() > maxSize:
			errs = append(errs, fmt.Errorf("%s: larger than %d MiB", name, maxSize>>20))
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		files = append(files, inputFile{name: name, data: data})
	}
	return files, errors.Join(errs...)
}

// racy is how long after a file's last change another one may not show in its time stamp, since that is taken from
// the kernel's tick.
const racy = 100 * time.Millisecond

// signature changes when any file may have changed. It is empty when it cannot tell.
func signature(path string, now time.Time) string {
	names, err := inputNames(path)
	if err != nil {
		return "error " + err.Error()
	}
	digest := xxhash.New()
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			fmt.Fprintf(digest, "%q %v\n", name, err)
			continue
		}
		if now.Sub(info.ModTime()) < racy {
			return ""
		}
		real, _ := filepath.EvalSymlinks(name) // another one when a link was moved
		fmt.Fprintf(digest, "%q %q %d %d\n", name, real, info.Size(), info.ModTime().UnixNano())
	}
	return fmt.Sprintf("%x", digest.Sum64())
}

// directories returns those in which something happens when the input changes: the one of the path and of what it
// links to, link by link, and the same for each entry of a directory.
func directories(path string) []string {
	dirs := map[string]struct{}{}
	addChain(dirs, path)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		addDirectory(dirs, path)
		entries, _ := os.ReadDir(path) // an error is reported when it is read
		for _, entry := range entries {
			if entry.Type()&fs.ModeSymlink != 0 && isManifest(entry.Name()) {
				addChain(dirs, filepath.Join(path, entry.Name()))
			}
		}
	}
	out := make([]string, 0, len(dirs))
	for dir := range dirs {
		out = append(out, dir)
	}
	return out
}

const maxLinks = 40 // as the kernel

func addChain(dirs map[string]struct{}, path string) {
	for range maxLinks {
		addDirectory(dirs, filepath.Dir(path))
		target, err := os.Readlink(path)
		if err != nil {
			return
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
}

// addDirectory adds a directory, and when it is reached through links, where these are.
func addDirectory(dirs map[string]struct{}, dir string) {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return
	}
	dirs[real] = struct{}{}
	if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
			dirs[parent] = struct{}{}
		}
	}
}
