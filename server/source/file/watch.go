// SPDX-License-Identifier: Apache-2.0

package file

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// An edit is often several events; it is over when there was none for quiet, and not waited for longer than
	// patience.
	quiet    = 50 * time.Millisecond
	patience = time.Second

	// Some file systems (of networks) give no events, and a watch can be lost with its directory. So there is a
	// look at the time stamps now and then, more often when there are no events at all.
	pollInterval        = 3 * time.Second
	pollIntervalWithout = time.Second
)

// watcher waits for changes of a path.
type watcher struct {
	path   string
	notify *fsnotify.Watcher // nil: only polling
	last   string            // signature when it was last looked at
}

func newWatcher(path string) *watcher {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		klog.ErrorS(err, "No file events (fs.inotify.max_user_instances?): looking every second instead", "path", path)
		return &watcher{path: path}
	}
	return &watcher{path: path, notify: notify}
}

func (w *watcher) close() {
	if w.notify != nil {
		_ = w.notify.Close() // nothing to lose
	}
}

// arm sets the watches anew, as directories may have been replaced, and remembers how the files look. What changes
// from then on is noticed; the caller reads the files after it.
func (w *watcher) arm() {
	if w.notify != nil {
		for _, dir := range w.notify.WatchList() {
			_ = w.notify.Remove(dir) // it may be gone
		}
		for _, dir := range directories(w.path) {
			if err := w.notify.Add(dir); err != nil {
				klog.V(1).InfoS("No events of a directory: looking now and then instead", "directory", dir, "reason", err)
			}
		}
	}
	w.last = signature(w.path, time.Now())
}

// wait returns true when the files may have changed, and false when ctx ends.
func (w *watcher) wait(ctx context.Context) bool {
	var events chan fsnotify.Event
	var errs chan error
	interval := pollIntervalWithout
	if w.notify != nil {
		events, errs, interval = w.notify.Events, w.notify.Errors, pollInterval
	}
	poll := time.NewTicker(interval)
	defer poll.Stop()
	var settled <-chan time.Time
	var giveUp time.Time
	for {
		select {
		case <-ctx.Done():
			return false
		case <-events:
			if settled == nil {
				giveUp = time.Now().Add(patience)
			}
			settled = time.After(min(quiet, time.Until(giveUp)))
		case err := <-errs: // events were lost
			klog.V(1).InfoS("File events were lost: looking at the files", "path", w.path, "reason", err)
			settled = time.After(quiet)
		case <-poll.C:
			if w.changed() {
				return true
			}
		case <-settled:
			if w.changed() {
				return true
			}
			settled = nil
		}
	}
}

func (w *watcher) changed() bool {
	now := signature(w.path, time.Now())
	return now == "" || now != w.last
}
