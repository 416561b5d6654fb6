// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Writer makes a kernel do what the model says. It is called by one goroutine at a time.
//
// Replace and Apply are transactions: after an error the kernel does exactly what it did before, and a packet never
// sees half of a change. The services handed in passed [Service.Validate], hold no frontend twice among them, and are not
// changed afterwards.
type Writer interface {
	// Replace makes the kernel do this and nothing else, whatever it did for this owner before: at start, and
	// to repair. Established connections go on.
	Replace(ctx context.Context, services []*Service) error
	// Apply makes changes to what the last successful Replace and Apply left. Its cost follows from the changes, not from
	// all that is there, and it reads nothing back.
	Apply(ctx context.Context, changes []Change) error
	// Check tells, cheaply, whether what was written is still there. False, or an error that wraps
	// [ErrUnsupported], are answers; the repair is Replace.
	Check(ctx context.Context) (intact bool, err error)
	// Cleanup removes all that the owner has. Nothing there is not an error.
	Cleanup(ctx context.Context) error
	// Text is what Replace would write, for people (--dry-run). It changes nothing and needs no privilege.
	Text(services []*Service) string
}

// ErrUnsupported is in the errors about things that this kernel does not have. Trying again does not help.
var ErrUnsupported = errors.New("not supported by this kernel")

// Change of one service. Old nil: it is new. New nil: it is gone.
type Change struct {
	Old, New *Service
}

// Name of the service.
func (c Change) Name() string {
	if c.New != nil {
		return c.New.Name
	}
	return c.Old.Name
}

// Options are what a writer is to know besides services. They do not change during its life.
type Options struct {
	// Owner names all that is written, such as "kpng-nat": letters, digits and dashes, at most 16.
	Owner string
	// Priority orders owners at the kernel's hooks, lower first. All of them come before kube-proxy. 1 to 9.
	Priority int
	// ClusterCIDRs are the addresses of pods (and of nodes, for Egress): traffic from there is not external.
	ClusterCIDRs []netip.Prefix
	// NodePortCIDRs are the node's own addresses that node ports are served at. Empty: all but loopback.
	NodePortCIDRs []netip.Prefix
	// Mark and MarkAlways are two bits of a packet's mark, used between its redirection and its leaving. MarkAlways means
	// the same to every writer, masquerade; what Mark means is the writer's own. So several may be on a node.
	Mark, MarkAlways uint32
	// DropInvalid drops forwarded packets that connection tracking calls invalid. They would pass without being translated
	// back, and their receiver would answer with a reset that ends the connection (kubernetes/kubernetes#74839).
	DropInvalid bool
	// ConnMark is a bit of the mark of each connection that we redirected, by which FORWARD accepts it. An owner that sets
	// it has it for itself: by it, flows are known for its own that were left by an earlier run.
	ConnMark uint32
}

// Defaults of the marks. kube-proxy has 0x4000 and 0x8000.
const (
	DefaultMark       = 0x1000
	DefaultMarkAlways = 0x2000
	DefaultConnMark   = 0x1000
)

// Complete sets what is zero to the defaults.
func (o Options) Complete() Options {
	if o.Priority == 0 {
		o.Priority = 5
	}
	if o.Mark == 0 {
		o.Mark = DefaultMark
	}
	if o.MarkAlways == 0 {
		o.MarkAlways = DefaultMarkAlways
	}
	if o.ConnMark == 0 {
		o.ConnMark = DefaultConnMark
	}
	return o
}

// Validate reports every fault.
func (o *Options) Validate() error {
	var errs []error
	if !ownerOK(o.Owner) {
		errs = append(errs, fmt.Errorf("owner %q: want 1 to 16 lower-case letters, digits and dashes", o.Owner))
	}
	if o.Priority < 0 || o.Priority > 9 {
		errs = append(errs, fmt.Errorf("priority %d: want 1 to 9", o.Priority))
	}
	if o.Mark&o.MarkAlways != 0 {
		errs = append(errs, fmt.Errorf("marks %#x and %#x: want bits of their own", o.Mark, o.MarkAlways))
	}
	for _, p := range append(append([]netip.Prefix(nil), o.ClusterCIDRs...), o.NodePortCIDRs...) {
		if err := prefixOK(p); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func ownerOK(s string) bool {
	for _, r := range s {
		if r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return s != "" && len(s) <= 16
}

func prefixOK(p netip.Prefix) error {
	if !p.IsValid() || p.Addr().Is4In6() {
		return fmt.Errorf("%s is not a prefix of IPv4 or IPv6", p)
	}
	if p != p.Masked() {
		return fmt.Errorf("%s has bits beyond its length: want %s", p, p.Masked())
	}
	return nil
}
