// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// MaxTargets bounds a pool: a kernel's transaction has to hold it.
const MaxTargets = 16384

// Validate reports every fault of the service.
func (s *Service) Validate() error {
	var errs []error
	if s.Name == "" {
		errs = append(errs, errors.New("no name"))
	}
	seen := map[Key]bool{}
	for i := range s.Frontends {
		f := &s.Frontends[i]
		if err := f.validate(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.Key(), err))
		}
		if seen[f.Key()] {
			errs = append(errs, fmt.Errorf("%s: twice", f.Key()))
		}
		seen[f.Key()] = true
	}
	for _, e := range s.Egress {
		if !usable(e.Source) || !usable(e.IP) || e.Source.Is6() != e.IP.Is6() {
			errs = append(errs, fmt.Errorf("egress %s as %s: want two addresses of one family", e.Source, e.IP))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("service %q: %w", s.Name, err)
	}
	return nil
}

func (f *Frontend) validate() error {
	errs := []error{f.validateKey(), f.validatePool(&f.Pool)}
	if f.Local != nil {
		errs = append(errs, f.validatePool(f.Local))
	}
	if f.Affinity < 0 || f.Affinity%time.Second != 0 {
		errs = append(errs, fmt.Errorf("affinity of %s: want whole seconds", f.Affinity))
	}
	if f.Masquerade > Always {
		errs = append(errs, fmt.Errorf("masquerade: %s", f.Masquerade))
	}
	for _, p := range f.Sources {
		if err := prefixOK(p); err != nil {
			errs = append(errs, fmt.Errorf("source %w", err))
		} else if p.Addr().Is6() != f.Is6() {
			errs = append(errs, fmt.Errorf("source %s is of the other family", p))
		}
	}
	return errors.Join(errs...)
}

func (f *Frontend) validateKey() error {
	switch {
	case f.Kind < ClusterIP || f.Kind > NodePort:
		return errors.New(f.Kind.String())
	case f.Kind == NodePort && (!plain(f.IP) || !f.IP.IsUnspecified()):
		return fmt.Errorf("address %s: want 0.0.0.0 or :: for a node port", f.IP)
	case f.Kind != NodePort && !usable(f.IP):
		return fmt.Errorf("address %s: want one of a service", f.IP)
	case f.Kind == NodePort && f.Protocol == Any:
		return errors.New("a node port of any protocol would take the whole node")
	case f.Protocol != Any && f.Protocol != TCP && f.Protocol != UDP && f.Protocol != SCTP:
		return fmt.Errorf("protocol: %s", f.Protocol)
	case (f.Protocol == Any) != (f.Port == 0):
		return fmt.Errorf("port %d with protocol %s", f.Port, f.Protocol)
	}
	return nil
}

func (f *Frontend) validatePool(p *Pool) error {
	var errs []error
	if len(p.Targets) > MaxTargets {
		errs = append(errs, fmt.Errorf("%d targets: at most %d", len(p.Targets), MaxTargets))
	}
	if p.Empty > Drop {
		errs = append(errs, errors.New(p.Empty.String()))
	}
	type place struct {
		ip   netip.Addr
		port uint16
	}
	seen := make(map[place]bool, len(p.Targets))
	for _, t := range p.Targets {
		switch k := (place{t.IP, t.Port}); {
		case !usable(t.IP) || t.IP.Is6() != f.Is6():
			errs = append(errs, fmt.Errorf("target %s: want an address of the frontend's family", t.IP))
		case f.Protocol == Any && t.Port != 0:
			errs = append(errs, fmt.Errorf("target %s has port %d, the frontend has none", t.IP, t.Port))
		case seen[k]:
			errs = append(errs, fmt.Errorf("target %s twice", netip.AddrPortFrom(t.IP, t.Port)))
		default:
			seen[k] = true
		}
	}
	return errors.Join(errs...)
}

// plain addresses are those that packets can have: no zones, no IPv4 in IPv6 clothes.
func plain(a netip.Addr) bool { return a.IsValid() && a.Zone() == "" && !a.Is4In6() }

func usable(a netip.Addr) bool { return plain(a) && !a.IsUnspecified() && !a.IsMulticast() }
