// SPDX-License-Identifier: Apache-2.0

//go:build linux

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/backends/internal/dataplane"
)

// Writer implements [dataplane.Writer]. Its life:
//
//  1. New, which runs nothing.
//  2. Replace finds the tools that work, lists what earlier runs left, of any flavor, and puts the new state in its
//     place.
//  3. Apply writes what changed. It has no need to know what is there.
//  4. Check asks the kernel for a number that changes with every change of the rules, and looks closer only when it did.
type Writer struct {
	*compiler
	flavor Flavor

	tools   []*tool // by family; nil: the family cannot be served here
	written [len(families)][len(tables)]written
	seen    seen
	rules   int // written or removed by the last Replace or Apply
}

var _ dataplane.Writer = &Writer{}

// New returns a writer that has written nothing yet.
func New(options dataplane.Options, flavor Flavor) (*Writer, error) {
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	if _, err := ParseFlavor(string(flavor)); err != nil {
		return nil, err
	}
	return &Writer{compiler: newCompiler(options), flavor: flavor}, nil
}

// Flavors tells which tools were chosen, for logs and tests; nothing before Replace.
func (w *Writer) Flavors() []Flavor {
	var flavors []Flavor
	for _, t := range w.tools {
		if t != nil {
			flavors = append(flavors, t.flavor)
		}
	}
	return flavors
}

// ensureTools chooses the tools, once. A node without IPv6 serves IPv4; without IPv4 tools nothing can be done.
func (w *Writer) ensureTools(ctx context.Context) error {
	if w.tools != nil {
		return nil
	}
	found := make([]*tool, len(families))
	for _, f := range families {
		t, err := choose(ctx, f, w.flavor, w.names)
		if f == v4 && err != nil {
			return fmt.Errorf("iptables: %w", err)
		}
		if err != nil {
			klog.ErrorS(err, "Only IPv4 is served", "owner", w.Owner)
			continue
		}
		klog.InfoS("Chose iptables", "owner", w.Owner, "family", f, "flavor", t.flavor, "path", t.path)
		found[f] = t
	}
	w.tools = found
	return nil
}

// step is one transaction and the one that takes it back.
type step struct {
	tool     *tool
	table    table
	do, undo string
}

// run makes steps in order. When one fails, those before it are taken back.
func (w *Writer) run(ctx context.Context, steps []step) error {
	for i, s := range steps {
		err := s.tool.restore(ctx, s.do)
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(steps[:i]) {
			// Also when ctx has ended: half a change must not stay.
			if undoErr := done.tool.restore(context.WithoutCancel(ctx), done.undo); undoErr != nil {
				err = errors.Join(err, fmt.Errorf("taking back the table %s: %w", done.table, undoErr))
			}
		}
		return fmt.Errorf("iptables: table %s, %s: %w", s.table, s.tool.family, err)
	}
	w.rules = 0
	for _, s := range steps {
		w.rules += s.rules()
	}
	return nil
}

// rules is how many rules the step writes or removes.
func (s step) rules() (n int) {
	for line := range strings.Lines(s.do) {
		if strings.HasPrefix(line, "-") && !strings.HasPrefix(line, "-X") {
			n++
		}
	}
	return n
}

// Written is how many rules the last Replace or Apply wrote or removed.
func (w *Writer) Written() int { return w.rules }

// Replace implements dataplane.Writer.
func (w *Writer) Replace(ctx context.Context, services []*dataplane.Service) error {
	if err := w.ensureTools(ctx); err != nil {
		return err
	}
	var steps []step
	var result [len(families)][len(tables)]written
	for _, t := range w.tools {
		if t == nil {
			continue
		}
		state := w.state(services, t.family)
		for _, table := range tables {
			listing, err := t.save(ctx, table.String())
			if err != nil {
				return fmt.Errorf("iptables: %w", err)
			}
			there, want := w.parse(listing), tableState{chains: state[table], hooks: w.tableHooks(table)}
			steps = append(steps, step{t, table, transition(table, there, want), transition(table, want, there)})
			result[t.family][table] = newWritten(want)
		}
	}
	if err := w.run(ctx, steps); err != nil {
		return err
	}
	w.written, w.seen = result, seen{}
	return w.cleanupOthers(ctx)
}

// state is everything that is to be in the tables of a family.
func (w *Writer) state(services []*dataplane.Service, f family) (state [len(tables)]rulesOf) {
	for _, table := range tables {
		state[table] = w.baseChains(f, table)
	}
	for _, s := range services {
		for table, b := range w.compile(s, f) {
			maps.Copy(state[table], b.own)
			for chain, rules := range b.shared {
				state[table][chain] = append(state[table][chain], rules...)
			}
		}
	}
	return state
}

// tableHooks are the hooks in a table.
func (c *compiler) tableHooks(t table) []hook {
	return slices.DeleteFunc(c.hooks(), func(h hook) bool { return h.table != t })
}

// Apply implements dataplane.Writer.
func (w *Writer) Apply(ctx context.Context, changes []dataplane.Change) error {
	if w.tools == nil {
		return errors.New("iptables: Apply before Replace")
	}
	var steps []step
	var follow []func()
	for _, t := range w.tools {
		if t == nil {
			continue
		}
		var do, undo [len(tables)]delta
		for _, change := range changes {
			before, now := w.compile(change.Old, t.family), w.compile(change.New, t.family)
			for _, table := range tables {
				do[table].change(before[table], now[table])
				undo[table].change(now[table], before[table])
				follow = append(follow, func() { w.written[t.family][table].change(before[table], now[table]) })
			}
		}
		for _, table := range tables {
			if !do[table].empty() {
				steps = append(steps, step{t, table, do[table].text(table), undo[table].text(table)})
			}
		}
	}
	if len(steps) == 0 {
		w.rules = 0
		return nil
	}
	before := w.fingerprints()
	if err := w.run(ctx, steps); err != nil {
		return err
	}
	for _, f := range follow {
		f()
	}
	w.advance(before, steps)
	return nil
}

// Cleanup implements dataplane.Writer. It looks at both flavors: an earlier run may have chosen the other one.
func (w *Writer) Cleanup(ctx context.Context) error {
	var errs []error
	for _, f := range families {
		for _, t := range candidates(f) {
			errs = append(errs, w.cleanupTool(ctx, t, true))
		}
	}
	w.written = [len(families)][len(tables)]written{}
	return errors.Join(errs...)
}

// cleanupOthers removes what an earlier run left with the tools that were not chosen now.
func (w *Writer) cleanupOthers(ctx context.Context) error {
	var errs []error
	for _, f := range families {
		for _, t := range candidates(f) {
			if chosen := w.tools[f]; chosen == nil || chosen.flavor == t.flavor {
				continue
			}
			errs = append(errs, w.cleanupTool(ctx, t, false))
		}
	}
	return errors.Join(errs...)
}

// cleanupTool removes all that is there. Tables that may not be there are looked at only when asked to.
func (w *Writer) cleanupTool(ctx context.Context, t *tool, asked bool) error {
	for _, table := range tables {
		if !t.inUse(table, asked) {
			continue
		}
		listing, err := t.save(ctx, table.String())
		if err != nil {
			return fmt.Errorf("iptables: cleanup: %w", err)
		}
		there := w.parse(listing)
		if len(there.chains) == 0 && len(there.hooks) == 0 {
			continue
		}
		klog.InfoS("Removing rules", "owner", w.Owner, "family", t.family, "flavor", t.flavor, "table", table, "chains", len(there.chains))
		if err := t.restore(ctx, transition(table, there, tableState{})); err != nil {
			return fmt.Errorf("iptables: cleanup: %w", err)
		}
	}
	return nil
}

// Text implements dataplane.Writer.
func (w *Writer) Text(services []*dataplane.Service) string {
	var b strings.Builder
	for _, f := range families {
		fmt.Fprintf(&b, "# %s-restore --noflush\n", f.program())
		state := w.state(services, f)
		for _, table := range tables {
			b.WriteString(transition(table, tableState{}, tableState{chains: state[table], hooks: w.tableHooks(table)}))
		}
	}
	return b.String()
}
