// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/internal/netlab"
)

// table is what is asked, and of which Services.
type table struct {
	services []*service
	rows     []*row
	kind     string // of the rows that are being added
}

// row is one question, in both families and in all protocols, and what must come of it.
type row struct {
	kind, from string
	service    *service
	to         target
	families   []nstest.Family
	networks   []string
	want       want
	but        []difference
}

// difference is what comes of the row with some proxies, and why.
type difference struct {
	proxies proxies
	why     reason
	want    want
}

// want is what may come of a question.
type want interface {
	// judge tells what is wrong with an answer to a question that was sent to an address, or with its absence.
	judge(to netip.Addr, a netlab.Answer, err error) error
	fmt.Stringer
}

// by are the pods that answer, all of them in time, with the host whose address each sees as the client's.
type by map[string]string

// itself in the place of a host is the address that was asked.
const itself = "the address itself"

func (b by) judge(to netip.Addr, a netlab.Answer, err error) error {
	if err != nil {
		return err
	}
	client, ok := b[a.Host]
	seen := to
	if ok && client != itself {
		seen = nstest.Family{V6: to.Is6()}.Addr(client)
	}
	if !ok || a.Client.Addr() != seen {
		return fmt.Errorf("answer of %s", a)
	}
	return nil
}

func (b by) String() string {
	var list []string
	for pod, client := range b {
		list = append(list, pod+" sees "+client)
	}
	slices.Sort(list)
	return strings.Join(list, " or ")
}

// sticky is that one of these pods answers, and from then on no other.
type sticky struct{ by }

func (s sticky) String() string { return "always the same of: " + s.by.String() }

// failure is that nobody answers.
type failure struct {
	name string
	is   func(error) bool
}

func (w failure) judge(_ netip.Addr, a netlab.Answer, err error) error {
	if err == nil {
		return fmt.Errorf("answer of %s", a)
	}
	if !w.is(err) {
		return err
	}
	return nil
}

func (w failure) String() string { return w.name }

var (
	refused = failure{"refused", nstest.Refused}
	silence = failure{"silence", nstest.Unanswered}
	// nothing is either, where it is none of the proxy's.
	nothing = failure{"no answer", func(err error) bool { return nstest.Refused(err) || nstest.Unanswered(err) }}
)

// newService adds a Service to the table.
func (t *table) service(name string, s spec) *service {
	svc := newService(len(t.services)+1, name, s)
	t.services = append(t.services, svc)
	return svc
}

// ask adds a row.
func (t *table) ask(from string, s *service, to target, w want) *row {
	r := &row{kind: t.kind, from: from, service: s, to: to, families: nstest.Families, networks: spoken(), want: w}
	t.rows = append(t.rows, r)
	return r
}

// with says what other proxies do.
func (r *row) with(p proxies, why reason, w want) *row {
	r.but = append(r.but, difference{p, why, w})
	return r
}

// in restricts the row to some protocols.
func (r *row) in(networks ...string) *row {
	r.networks = networks
	return r
}

var v4, v6 = nstest.Families[0], nstest.Families[1]

// only restricts the row to a family.
func (r *row) only(f nstest.Family) *row {
	r.families = []nstest.Family{f}
	return r
}

// wanted of a proxy.
func (r *row) wanted(p proxies) want {
	for _, d := range r.but {
		if d.proxies&p != 0 {
			return d.want
		}
	}
	return r.want
}

func (r *row) String() string {
	return fmt.Sprintf("%s: %s asks %s of %s", r.kind, r.from, r.to.name, r.service.name)
}

// enough questions to have heard each of a few pods, but for one time in a thousand million.
const enough = 64

// check asks a row's question; the error names all that is not as it should be.
func (w *world) check(ctx context.Context, r *row) error {
	want := r.wanted(w.proxy)
	var errs []error
	for _, f := range r.families {
		for _, network := range r.networks {
			_, fails := want.(failure)
			if fails && network == nstest.SCTP {
				continue // a raw socket does not learn of a refusal
			}
			for i, p := range probesOf(network, r.to.in(f)) {
				if fails && i > 0 {
					continue
				}
				if err := w.hear(ctx, r.from, p, want); err != nil {
					errs = append(errs, fmt.Errorf("%s: %v, %s, %s (%d bytes): want %s: %w", w.name, r, p.To, network, p.Size, want, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// hear asks until each of the pods was heard.
func (w *world) hear(ctx context.Context, from string, p netlab.Probe, want want) error {
	pods, _ := want.(by)
	_, sticks := want.(sticky)
	heard := map[string]bool{}
	for i := range enough {
		a, err := w.once(ctx, from, p, want)
		if err := want.judge(p.To.Addr(), a, err); err != nil {
			return err
		}
		heard[a.Host] = true
		switch {
		case sticks && len(heard) > 1:
			return fmt.Errorf("%v answer", heard)
		case sticks && i < faithful:
			continue
		case len(heard) >= len(pods):
			return nil
		}
	}
	return fmt.Errorf("only %v answer", heard)
}

// faithful is how often the same of two pods answers by chance once in a million times.
const faithful = 20

// once asks. Where silence would do there is no point in waiting for long.
func (w *world) once(ctx context.Context, from string, p netlab.Probe, want want) (netlab.Answer, error) {
	if f, fails := want.(failure); fails && f.is(netlab.ErrNoAnswer) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nstest.Silence)
		defer cancel()
	}
	return w.Ask(ctx, from, p)
}

// checkAll asks all rows, several at a time.
func (w *world) checkAll(t *testing.T, rows []*row) {
	t.Helper()
	errs := make([]error, len(rows))
	turns := make(chan struct{}, 16)
	var all sync.WaitGroup
	for i, r := range rows {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			errs[i] = w.check(t.Context(), r)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			t.Errorf("%v", err)
		}
	}
}
