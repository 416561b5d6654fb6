// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// fileMode of what is written: everybody may read it, as there are no secrets in it.
const fileMode = 0o644

// WriteFile replaces a file by what write writes: readers see the old or the new file, whole, also after a power cut.
// On an error the old file stays. What is not a regular file, such as /dev/stdout, is written to as it is.
func WriteFile(path string, write func(io.Writer) error) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // replace what the link leads to, not the link
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory: give the name of a file in it", path)
	case !info.Mode().IsRegular():
		return writeTo(path, write)
	}
	return replace(path, write)
}

func writeTo(path string, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func replace(path string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error says what is wrong
		}
	}()
	if err := errors.Join(f.Chmod(fileMode), write(f), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// temporary is the pattern of the names of files in the making. They are hidden, so no source reads them.
func temporary(path string) string { return "." + filepath.Base(path) + ".*.kpng-tmp" }

// removeTemporary removes what a killed process may have left.
func removeTemporary(path string) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	left, err := filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
	if err != nil {
		return // the name has characters of a pattern: nothing is removed
	}
	for _, name := range left {
		_ = os.Remove(name) // it only takes up space
	}
}

// syncDir makes a rename last. Some file systems cannot do it, and then it is theirs to be safe.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	_ = d.Sync()
	return nil
}
