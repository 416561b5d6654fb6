// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/server/source/kube/translate"
)

// Config says which files to read and what to take from them.
type Config struct {
	translate.Config

	// Input is a file, or a directory whose *.yaml, *.yml and *.json are read, in the order of their names.
	Input string
}

// BindFlags adds the flags and sets the defaults.
func (c *Config) BindFlags(fs *pflag.FlagSet) {
	c.Config.BindFlags(fs)
	fs.StringVarP(&c.Input, "input", "i", "", "`PATH` of a file or directory of manifests, or of a dump written by to-file")
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	errs := []error{c.Config.Validate()}
	if c.Input == "" {
		errs = append(errs, errors.New("--input: give a file or a directory of manifests"))
	}
	return errors.Join(errs...)
}
