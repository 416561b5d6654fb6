// SPDX-License-Identifier: Apache-2.0

//go:build linux

package driver

import (
	"context"
	"maps"
	"slices"
	"time"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// oracle is a writer that can find out which services the kernel would refuse, without changing anything. It may not know
// of some. The error says that not even the empty state is taken, or that the kernel cannot be asked.
type oracle interface {
	Refused(ctx context.Context, services []*dataplane.Service) (names []string, err error)
}

// wouldRefuse is what the writer knows of that, if it is one that knows.
func (d *Driver) wouldRefuse(ctx context.Context, services []*dataplane.Service) (map[string]bool, error) {
	o, ok := d.writer.(oracle)
	if !ok || len(services) == 0 {
		return nil, nil
	}
	list, err := o.Refused(ctx, services)
	names := make(map[string]bool, len(list))
	for _, name := range list {
		names[name] = true
	}
	return names, err
}

// search writes changes. A part that the kernel refuses is tried without the services that the writer finds out; if it
// finds none, in halves, down to the service that is refused. The larger parts come first. What the attempts do not
// suffice for is left for a later round, as suspects. An error is about all services.
func (d *Driver) search(ctx context.Context, r *round, attempts int, parts ...[]dataplane.Change) error {
	until := time.Now().Add(d.searchTime)
	asked := false
	for i := 0; len(parts) > 0 && i < attempts && (i == 0 || time.Now().Before(until)); {
		part := parts[0]
		parts = parts[1:]
		if len(part) == 0 {
			continue
		}
		i++
		err := d.apply(ctx, r, part)
		if err == nil {
			continue
		}
		if ctx.Err() != nil {
			return err
		}
		if !r.looked && !r.full { // once is enough to tell it from a refusal
			if d.verify(ctx); d.altered {
				return errAltered
			}
			r.looked = true
		}
		switch {
		case ofAll(err):
			return err
		case len(part) == 1:
			d.refuse(r, part[0].Name(), err)
			continue
		case !asked:
			asked = true
			parts = append(parts, d.withoutRefused(ctx, r, part, err)...)
		default:
			parts = append(parts, halves(part)...)
		}
	}
	d.suspect(r, parts)
	return nil
}

func halves(part []dataplane.Change) [][]dataplane.Change {
	half := len(part) / 2
	return [][]dataplane.Change{part[:half], part[half:]}
}

// withoutRefused is the part without the services that the writer finds out, or else its halves.
func (d *Driver) withoutRefused(ctx context.Context, r *round, part []dataplane.Change, err error) [][]dataplane.Change {
	var services []*dataplane.Service
	for _, c := range part {
		if c.New != nil {
			services = append(services, c.New)
		}
	}
	names, unknown := d.wouldRefuse(ctx, services)
	if unknown != nil || len(names) == 0 {
		return halves(part)
	}
	rest := make([]dataplane.Change, 0, len(part))
	for _, c := range part {
		if names[c.Name()] {
			d.refuse(r, c.Name(), err)
		} else {
			rest = append(rest, c)
		}
	}
	return [][]dataplane.Change{rest}
}

// suspect leaves the rest of a search for a later round. Those that were known to be refused stay just that.
func (d *Driver) suspect(r *round, parts [][]dataplane.Change) {
	for _, part := range parts {
		d.parts++
		for _, c := range part {
			if _, suspect := d.suspects[c.Name()]; suspect || d.refused[c.Name()] == nil {
				d.suspects[c.Name()] = d.parts
				r.halved = true
			}
		}
	}
}

// apply makes one transaction.
func (d *Driver) apply(ctx context.Context, r *round, part []dataplane.Change) error {
	r.attempts++
	all := slices.Concat(part, d.yields(part))
	if err := d.writer.Apply(ctx, all); err != nil {
		return err
	}
	d.metrics.wrote(d.writer)
	r.applied = append(r.applied, all...)
	for _, c := range all {
		if c.New == nil {
			delete(d.written, c.Name())
		} else {
			d.written[c.Name()] = c.New
		}
	}
	for _, c := range part {
		d.settle(r, c.Name())
	}
	return nil
}

// yields takes from the kernel the last good state of services whose change was refused, where that holds a frontend
// that is another one's now.
func (d *Driver) yields(part []dataplane.Change) []dataplane.Change {
	changed := map[string]bool{}
	held := map[dataplane.Key]*dataplane.Service{}
	if len(d.refused)+len(d.suspects) > 0 {
		for _, c := range part {
			changed[c.Name()] = true
		}
	}
	for name, s := range d.keptBefore() {
		for i := range s.Frontends {
			if !changed[name] {
				held[s.Frontends[i].Key()] = s
			}
		}
	}
	if len(held) == 0 {
		return nil
	}
	yielding := map[string]dataplane.Change{}
	for _, c := range part {
		if c.New == nil {
			continue
		}
		for i := range c.New.Frontends {
			if s := held[c.New.Frontends[i].Key()]; s != nil {
				yielding[s.Name] = dataplane.Change{Old: s}
			}
		}
	}
	return values(yielding)
}

// keptBefore are the services that the kernel has in the last good state, as it has not taken a later one.
func (d *Driver) keptBefore() map[string]*dataplane.Service {
	kept := map[string]*dataplane.Service{}
	for name := range d.refused {
		if s := d.written[name]; s != nil {
			kept[name] = s
		}
	}
	for name := range d.suspects {
		if s := d.written[name]; s != nil {
			kept[name] = s
		}
	}
	return kept
}

// values of a map, in the order of its keys.
func values[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name])
	}
	return out
}
