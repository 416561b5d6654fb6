// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
)

// Prefixes are the value of a flag that takes a list of CIDRs.
type Prefixes struct {
	// List is what the flag says, once Parse was called.
	List []netip.Prefix

	name  string
	flags *pflag.FlagSet
	text  []string
}

// Bind binds the flag.
func (p *Prefixes) Bind(flags *pflag.FlagSet, name, usage string) {
	p.name, p.flags = name, flags
	flags.StringSliceVar(&p.text, name, nil, usage)
}

// Given tells whether the flag is there.
func (p *Prefixes) Given() bool { return p.flags != nil && p.flags.Changed(p.name) }

// Parse fills in List and reports every value that is no prefix. A prefix with bits beyond its length is a typing
// error more often than not, so it is one here. An empty list is not the same as no flag, and an error.
func (p *Prefixes) Parse() error {
	if !p.Given() {
		return nil
	}
	if len(p.text) == 0 {
		return fmt.Errorf("--%s: no prefix given; leave the flag away if that is meant", p.name)
	}
	p.List = nil
	var errs []error
	for _, text := range p.text {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("--%s: %q: want a CIDR such as 192.0.2.0/24 or 2001:db8::/64", p.name, text))
		case prefix.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("--%s: %s: write an IPv4 prefix as IPv4", p.name, prefix))
		case prefix.Masked() != prefix:
			errs = append(errs, fmt.Errorf("--%s: %s has bits beyond its length: did you mean %s?", p.name, prefix, prefix.Masked()))
		default:
			p.List = append(p.List, prefix)
		}
	}
	return errors.Join(errs...)
}

// Contains tells whether one of the prefixes has the address.
func (p *Prefixes) Contains(ip netip.Addr) bool {
	for _, prefix := range p.List {
		if prefix.Contains(ip) {
			return true
		}
	}
	return false
}

// Knows tells whether there are prefixes of a family.
func (p *Prefixes) Knows(v6 bool) bool {
	for _, prefix := range p.List {
		if prefix.Addr().Is6() == v6 {
			return true
		}
	}
	return false
}
