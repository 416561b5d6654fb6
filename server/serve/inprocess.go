// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"time"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// Sink is what takes the ops of localv1 in this process. It is the interface of client/localsink, which this package
// does not know.
type Sink interface {
	Setup()
	WaitRequest() (nodeName string, err error)
	Reset()
	localv1.OpSink
}

// asker is a Sink that asks for more than the view of a node, as client/localsink.Asker does.
type asker interface {
	Ask(req *localv1.WatchReq)
}

// InProcess feeds a sink from a store as a stream would, until ctx ends (it then returns nil) or the sink's
// WaitRequest returns an error, which it returns. With once, it ends after the first whole state.
func InProcess(ctx context.Context, st *store.Store, sink Sink, once bool) error {
	sink.Setup()
	sink.Reset()
	var state localState
	for first := true; ; first = false {
		nodeName, err := sink.WaitRequest()
		if err != nil {
			return err
		}
		req := &localv1.WatchReq{NodeName: nodeName}
		if a, ok := sink.(asker); ok {
			a.Ask(req)
		}
		next := func(to *store.Snapshot, w opWriter) (*store.Diff, int) { return state.advance(to, req, w) }
		if _, err := changeSet(ctx, st, &sinkWriter{sink: sink}, first, next); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // being told to stop is not a failure
			}
			return err
		}
		if once {
			return nil
		}
	}
}

// sinkWriter hands ops to a Sink. A sink reports trouble with its input itself; it ends through WaitRequest.
type sinkWriter struct {
	sink Sink
	at   int64 // OpItem.TriggeredAt of what comes
}

func (w *sinkWriter) triggered(at int64) { w.at = at }

func (w *sinkWriter) send(op *localv1.OpItem) { _ = w.sink.Send(op) }

func (w *sinkWriter) reset() {
	w.send(&localv1.OpItem{Op: &localv1.OpItem_Reset_{Reset_: &localv1.EmptyOp{}}})
}

func (w *sinkWriter) set(set localv1.Set, p path, value, suffix string) {
	bytes := append(make([]byte, 0, len(value)+len(suffix)), value...)
	w.send(&localv1.OpItem{TriggeredAt: w.at, Op: &localv1.OpItem_Set{Set: &localv1.Value{
		Ref:   &localv1.Ref{Set: set, Path: p.String()},
		Bytes: append(bytes, suffix...),
	}}})
}

func (w *sinkWriter) remove(set localv1.Set, p path) {
	w.send(&localv1.OpItem{TriggeredAt: w.at, Op: &localv1.OpItem_Delete{Delete: &localv1.Ref{Set: set, Path: p.String()}}})
}

func (w *sinkWriter) end() error {
	w.send(&localv1.OpItem{Op: &localv1.OpItem_Sync{Sync: &localv1.EmptyOp{}}})
	return nil
}

// changeSet waits until there is something to tell, tells it, and ends the set. The first set of a stream is told
// as soon as the store is synced, also when it is empty. It returns when the source saw the first cause of it
// (zero when that is not known).
func changeSet(ctx context.Context, st *store.Store, w opWriter, first bool,
	next func(*store.Snapshot, opWriter) (*store.Diff, int),
) (event time.Time, err error) {
	if first {
		snapshot, err := st.WaitSynced(ctx)
		if err != nil {
			return time.Time{}, err
		}
		w.reset()
		next(snapshot, w)
		return time.Time{}, w.end()
	}
	for {
		snapshot, outdated := st.Watch()
		if diff, ops := next(snapshot, w); ops != 0 {
			return diff.Event(), w.end()
		}
		select {
		case <-outdated:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
