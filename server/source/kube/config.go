// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/server/source/kube/translate"
)

// Config says which API server to follow, what to take from it, and how.
type Config struct {
	translate.Config

	// Kubeconfig is a file; empty stands for $KUBECONFIG, and else for the service account of a pod.
	Kubeconfig string
	// Server is the URL of the API server, when it is not the one of the kubeconfig.
	Server string

	// StartupTimeout is how long the API server may be unreachable at the start.
	StartupTimeout time.Duration

	// A change is committed once nothing has arrived for CommitDelay, and no later than CommitMaxDelay after the
	// first. With zero for both, it is committed at once.
	CommitDelay    time.Duration
	CommitMaxDelay time.Duration
}

// BindFlags adds the flags and sets the defaults.
func (c *Config) BindFlags(fs *pflag.FlagSet) {
	c.Config.BindFlags(fs)
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "kubeconfig `FILE` (default: $KUBECONFIG, or the service account of the pod)")
	fs.StringVar(&c.Server, "server", "", "`URL` of the API server, instead of the kubeconfig's")
	fs.DurationVar(&c.StartupTimeout, "startup-timeout", 10*time.Second,
		"give up when the API server has not been reached for this long at the start")
	fs.DurationVar(&c.CommitDelay, "commit-delay", time.Millisecond,
		"pass changes on when no more have arrived for this long")
	fs.DurationVar(&c.CommitMaxDelay, "commit-max-delay", 50*time.Millisecond,
		"pass changes on after this long even when more keep arriving")
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	errs := []error{c.Config.Validate()}
	if c.Server != "" {
		u, err := url.Parse(c.Server)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("--server %q: not a URL such as https://10.0.0.1:6443", c.Server))
		}
	}
	if c.StartupTimeout <= 0 {
		errs = append(errs, fmt.Errorf("--startup-timeout %s: must be above 0", c.StartupTimeout))
	}
	if c.CommitDelay < 0 || c.CommitMaxDelay < c.CommitDelay {
		errs = append(errs, fmt.Errorf("--commit-delay %s, --commit-max-delay %s: must be at least 0, and the second at least the first",
			c.CommitDelay, c.CommitMaxDelay))
	}
	return errors.Join(errs...)
}
