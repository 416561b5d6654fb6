// SPDX-License-Identifier: Apache-2.0

package callout

import (
	"maps"
	"slices"

	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/changes"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
)

// sink starts the worker with the client, and ends the client when it cannot be started.
type sink struct {
	localsink.Sink
	cmd *Cmd
	err error
}

// Setup implements localsink.Sink.
func (s *sink) Setup() {
	s.Sink.Setup()
	s.err = s.cmd.start()
}

// WaitRequest implements localsink.Sink.
func (s *sink) WaitRequest() (nodeName string, err error) {
	if s.err != nil {
		return "", s.err
	}
	return s.Sink.WaitRequest()
}

// fullSink has the program run with everything at every change.
func (c *Cmd) fullSink() localsink.Sink {
	var revision uint64
	var last []*fullstate.ServiceEndpoints
	sink := fullstate.New(&c.config)
	sink.Callback = fullstate.ArrayCallback(func(items []*fullstate.ServiceEndpoints) {
		if revision > 0 && slices.EqualFunc(items, last, sameItem) {
			return // a Sync that brought nothing
		}
		revision++
		last = items
		c.worker.offer(newTask("", items, revision, reasonChange))
	})
	return sink
}

// sameItem tells whether nothing came between two items: the sink hands out a message again until it changes.
func sameItem(a, b *fullstate.ServiceEndpoints) bool {
	return a.Service == b.Service && slices.Equal(a.Endpoints, b.Endpoints)
}

// changesSink has the program run for each service that changed.
func (c *Cmd) changesSink() localsink.Sink {
	var revision uint64
	return changes.New(&c.config, func(changed []changes.Change) error {
		revision++
		tasks := make([]*task, 0, len(changed))
		for _, change := range changed {
			why := reasonChange
			if change.Op == changes.Delete {
				why = reasonDelete
			}
			key := change.Item.Service.NamespacedName()
			tasks = append(tasks, newTask(key, []*fullstate.ServiceEndpoints{change.Item}, revision, why))
		}
		c.worker.offer(tasks...)
		return nil
	})
}

// known is what a resync repeats: the newest task of each key that is not a deletion. It is kept only with --resync,
// as it holds the state.
type known map[string]*task

func (k known) note(t *task) {
	if t.reason == reasonDelete {
		delete(k, t.key)
		return
	}
	k[t.key] = t
}

// tasks are those to run for a resync, by key.
func (k known) tasks() []*task {
	tasks := make([]*task, 0, len(k))
	for _, key := range slices.Sorted(maps.Keys(k)) {
		t := k[key]
		tasks = append(tasks, newTask(key, t.items, t.revision, reasonResync))
	}
	return tasks
}
