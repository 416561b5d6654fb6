// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/backends/internal/dataplane/iptables"
)

// Dataplane is what programs the kernel.
type Dataplane string

// The dataplanes.
const (
	IPTables Dataplane = "iptables"
	NFTables Dataplane = "nftables"
)

var dataplanes = []Dataplane{IPTables, NFTables}

// Options are the flags.
type Options struct {
	Dataplane     Dataplane
	Flavor        iptables.Flavor
	SetSysctls    bool
	ResetTCP      bool
	DryRun        bool
	Cleanup       bool
	CleanupOnExit bool

	driver *Driver
}

// BindFlags binds --dataplane, --iptables-flavor, --set-sysctls, --reset-tcp, --dry-run, --cleanup and --cleanup-on-exit.
func (o *Options) BindFlags(flags *pflag.FlagSet, preferred Dataplane) {
	flags.StringVar((*string)(&o.Dataplane), "dataplane", string(preferred), "what to program: iptables or nftables")
	flags.StringVar((*string)(&o.Flavor), "iptables-flavor", string(iptables.Auto),
		"the iptables to use: nft, legacy, or auto (the first that works: that of the program iptables, then the other)")
	flags.BoolVar(&o.SetSysctls, "set-sysctls", false, "turn forwarding of packets on where it is off; else that is an error")
	flags.BoolVar(&o.ResetTCP, "reset-tcp", false, "end TCP connections to endpoints that are gone; else they are left to their ends")
	flags.BoolVar(&o.DryRun, "dry-run", false, "print what would be written for the first whole state, and end")
	flags.BoolVar(&o.Cleanup, "cleanup", false, "take away everything that this backend has ever written, and end")
	flags.BoolVar(&o.CleanupOnExit, "cleanup-on-exit", false,
		"take everything away when told to end; without, the rules stay, so that a restart disturbs no traffic")
}

// Validate reports every fault at once.
func (o *Options) Validate() error {
	var errs []error
	if !slices.Contains(dataplanes, o.Dataplane) {
		errs = append(errs, fmt.Errorf("--dataplane=%s: want iptables or nftables", o.Dataplane))
	}
	if _, err := iptables.ParseFlavor(string(o.Flavor)); err != nil {
		errs = append(errs, fmt.Errorf("--iptables-flavor: %w", err))
	}
	var modes []string
	for _, mode := range []struct {
		flag string
		set  bool
	}{{"--dry-run", o.DryRun}, {"--cleanup", o.Cleanup}, {"--cleanup-on-exit", o.CleanupOnExit}} {
		if mode.set {
			modes = append(modes, mode.flag)
		}
	}
	if len(modes) > 1 {
		errs = append(errs, fmt.Errorf("%s: want one of them at most", strings.Join(modes, ", ")))
	}
	return errors.Join(errs...)
}
