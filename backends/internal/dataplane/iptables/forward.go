// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Forward is for a writer that does not write to iptables. Where FORWARD drops by policy, as with docker or ufw, that is
// final, whatever other tables accept; so it takes a rule in FORWARD itself to have an exception for the connections that
// we redirected. The rule stands last: it is one to the policy only, and not to what somebody forbids by a rule.
type Forward struct {
	comment string
	accept  []string
	tools   [len(families)][]*tool
	found   bool
}

// NewForward does nothing yet.
func NewForward(o dataplane.Options) *Forward {
	o = o.Complete()
	said := o.Owner + ": what it redirected"
	return &Forward{comment: said, accept: []string{
		"-m", "connmark", "--mark", fmt.Sprintf("0x%[1]x/0x%[1]x", o.ConnMark), "-m", "comment", "--comment", said, "-j", "ACCEPT",
	}}
}

// Ensure adds the rule where it is needed and not there. NFTDrops tells about the table of the flavor nft, which is cheaper
// to ask the kernel than a program. No program, or no such table, is not an error.
func (f *Forward) Ensure(ctx context.Context, nftDrops func(v6 bool) bool) error {
	return f.each(func(t *tool) error {
		if t.flavor == NFT && !nftDrops(t.family == v6) || !t.inUse(filter, false) {
			return nil
		}
		listing, err := f.list(ctx, t)
		if err != nil || !strings.Contains(listing, "-P FORWARD DROP\n") || f.rules(listing) > 0 {
			return err
		}
		return f.change(ctx, t, "-A")
	})
}

// Remove the rule wherever it is.
func (f *Forward) Remove(ctx context.Context) error {
	return f.each(func(t *tool) error {
		if !t.inUse(filter, false) {
			return nil
		}
		listing, err := f.list(ctx, t)
		for range f.rules(listing) {
			err = errors.Join(err, f.change(ctx, t, "-D"))
		}
		return err
	})
}

// each calls do for all installed tools.
func (f *Forward) each(do func(*tool) error) error {
	var errs []error
	for _, family := range families {
		if !f.found {
			f.tools[family] = candidates(family)
		}
		for _, t := range f.tools[family] {
			if err := do(t); err != nil {
				errs = append(errs, fmt.Errorf("FORWARD of %s (%s): %w", t.family.program(), t.flavor, err))
			}
		}
	}
	f.found = true
	return errors.Join(errs...)
}

func (f *Forward) list(ctx context.Context, t *tool) (string, error) {
	return t.run(ctx, t.path, "", "-w", fmt.Sprint(int(lockWait.Seconds())), "-S", "FORWARD")
}

// rules is how many of ours are in a listing.
func (f *Forward) rules(listing string) int {
	return strings.Count(listing, fmt.Sprintf("--comment %q", f.comment))
}

func (f *Forward) change(ctx context.Context, t *tool, how string) error {
	args := append([]string{"-w", fmt.Sprint(int(lockWait.Seconds())), how, "FORWARD"}, f.accept...)
	_, err := t.run(ctx, t.path, "", args...)
	return err
}
