// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/server/store"
)

// Source reads files and follows their changes. Make one with [New].
type Source struct {
	config  *Config
	trouble atomic.Pointer[trouble] // nil: the files were read
	reads   *prometheus.CounterVec
	stale   prometheus.Gauge
}

// trouble is why the state may not be what the files say.
type trouble struct {
	since time.Time
	err   error
}

var errNotRead = errors.New("not synced: the files have not been read yet")

// New checks the configuration.
func New(cfg *Config) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Source{
		config: cfg,
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kpng_file_reads_total",
			Help: "How often the input was read, by result (ok, error).",
		}, []string{"result"}),
		stale: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kpng_file_stale",
			Help: "1 while the input cannot be read and the last good state is served.",
		}),
	}
	s.trouble.Store(&trouble{err: errNotRead})
	return s, nil
}

// Ready returns nil when the state is what the files say, and the reason otherwise.
func (s *Source) Ready() error {
	t := s.trouble.Load()
	switch {
	case t == nil:
		return nil
	case t.since.IsZero():
		return t.err
	}
	return fmt.Errorf("stale: %w since %s", t.err, t.since.Format(time.TimeOnly))
}

// Collectors returns the metrics of the source.
func (s *Source) Collectors() []prometheus.Collector { return []prometheus.Collector{s.reads, s.stale} }

// Run reads the files and follows their changes until ctx ends, and returns nil then. Files that cannot be read at
// the start are an error; later they are not.
func (s *Source) Run(ctx context.Context, st *store.Store) error {
	w := newWatcher(s.config.Input)
	defer w.close()
	r := &reader{config: s.config, held: newState(), told: map[string]bool{}}

	w.arm()
	if err := s.read(r, st); err != nil {
		return err
	}
	klog.InfoS("Following files", "input", s.config.Input)
	for w.wait(ctx) {
		w.arm()
		if err := s.read(r, st); err != nil {
			s.failed(err)
		}
	}
	return nil
}

func (s *Source) read(r *reader, st *store.Store) error {
	if err := r.read(st); err != nil {
		s.reads.WithLabelValues("error").Inc()
		return err
	}
	s.reads.WithLabelValues("ok").Inc()
	s.stale.Set(0)
	if before := s.trouble.Swap(nil); before != nil && !before.since.IsZero() {
		klog.InfoS("The files can be read again", "input", s.config.Input)
	}
	return nil
}

// failed logs each new reason once.
func (s *Source) failed(err error) {
	s.stale.Set(1)
	now := &trouble{since: time.Now(), err: err}
	if before := s.trouble.Load(); before != nil {
		now.since = before.since
		if before.err.Error() == err.Error() {
			return
		}
	}
	s.trouble.Store(now)
	klog.ErrorS(err, "The files cannot be used: the last good state stays")
}

// reader brings the files into the store, again and again.
type reader struct {
	config *Config
	digest uint64 // of the files last used
	held   *state // names of what the store has of us
	told   map[string]bool
}

// read reads all files and passes the difference on. When any of them is broken, nothing happens.
func (r *reader) read(st *store.Store) error {
	begin := time.Now()
	files, err := readInput(r.config.Input)
	if err != nil {
		return oneLine(err)
	}
	digest := digestOf(files)
	if digest == r.digest && st.Snapshot().Synced() {
		return nil
	}
	collected := newCollector(&r.config.Config)
	var errs []error
	for _, f := range files {
		objs, err := decodeFile(f.data)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
			continue
		}
		collected.add(f.name, objs)
	}
	if err := errors.Join(errs...); err != nil {
		return oneLine(err)
	}
	wanted := collected.state()
	r.tell(collected)
	st.Update(func(tx *store.Tx) {
		tx.SetEventTime(begin)
		wanted.apply(tx, r.held)
	})
	r.held, r.digest = wanted.names(), digest
	return nil
}

// tell logs what was not said of the files before.
func (r *reader) tell(collected *collector) {
	told := map[string]bool{}
	slices.Sort(collected.notes)
	for _, note := range slices.Compact(collected.notes) {
		told[note] = true
		if !r.told[note] {
			klog.InfoS("A manifest cannot be carried as it is", "note", note)
		}
	}
	slices.Sort(collected.ignored)
	for _, ignored := range slices.Compact(collected.ignored) {
		told[ignored] = true
		if !r.told[ignored] {
			klog.V(1).InfoS("Not read: only Services, EndpointSlices, Nodes and dumps are", "object", ignored)
		}
	}
	r.told = told
}

func digestOf(files []inputFile) uint64 {
	digest := xxhash.New()
	for _, f := range files {
		fmt.Fprintf(digest, "%q %d\n", f.name, len(f.data))
		_, _ = digest.Write(f.data) // never fails
	}
	return digest.Sum64()
}

// oneLine keeps the first of several errors and counts the others.
func oneLine(err error) error {
	lines := strings.Split(err.Error(), "\n")
	if len(lines) == 1 {
		return err
	}
	return fmt.Errorf("%s (and %d more)", lines[0], len(lines)-1)
}
