// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// feed follows one selection of one resource. It is the store of a client-go Reflector, which calls it from one
// goroutine; see the [cache.ReflectorStore] methods.
type feed struct {
	src       *session
	name      string // for people
	kind      kind
	resource  *resource
	namespace string // empty: all
	selector  string
	// needed: without it there is nothing to serve, so what cannot be healed by waiting ends the process at the start.
	needed bool
	// seen, when set, is told of each object after the mirror.
	seen func(i *item)
	gone func(k key)

	keys    map[key]struct{} // what this feed knows; guarded by the mirror, as is stopped
	stopped bool
	retired bool // guarded by health

	listed  atomic.Bool
	watched atomic.Bool
}

// retryDelays doubles from 100 ms; with the jitter (up to as much again) an API server that is back is found within
// 5 seconds, and the nodes of a cluster do not ask all at once.
func retryDelays() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 16, Cap: 2500 * time.Millisecond}
}

// goodRun is how long a feed must have worked for its next retry to be quick again.
const goodRun = 10 * time.Second

// run follows until ctx ends.
func (f *feed) run(ctx context.Context) {
	delays := retryDelays()
	reflector := cache.NewReflectorWithOptions(&cache.ListWatch{
		ListWithContextFunc:  f.list,
		WatchFuncWithContext: f.watch,
	}, f.resource.object, f, cache.ReflectorOptions{
		Name: f.name, TypeDescription: f.resource.name, Backoff: &delays, Clock: endingClock{ctx: ctx},
	})
	// The Reflector's own lines are for debugging: what matters is reported by health.
	ctx = klog.NewContext(ctx, klog.Background().V(2))
	for ctx.Err() == nil {
		start := time.Now()
		if err := reflector.ListAndWatchWithContext(ctx); err != nil {
			klog.V(2).InfoS("Listing and watching ended", "feed", f.name, "reason", err)
		}
		if time.Since(start) > goodRun {
			delays = retryDelays()
		}
		select {
		case <-ctx.Done():
		case <-time.After(delays.Step()):
		}
	}
}

func (f *feed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector = f.selector
	list, err := f.src.client.list(ctx, f.resource, f.namespace, options)
	if err != nil {
		f.failed(ctx, "list", err)
	}
	return list, err
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector = f.selector
	w, err := f.src.client.watch(ctx, f.resource, f.namespace, options)
	if err != nil {
		streaming := options.SendInitialEvents != nil
		if !streaming || !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
			f.failed(ctx, "watch", err)
		} // else the API server knows no streaming lists, and the Reflector lists the old way
		return nil, err
	}
	f.watched.Store(true)
	f.src.health.fine(f)
	f.checkDone()
	return w, nil
}

func (f *feed) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return // we are going, or this feed is
	}
	f.src.metrics.errors.WithLabelValues(f.resource.name, verb).Inc()
	if expired := apierrors.IsResourceExpired(err) || apierrors.IsGone(err); expired {
		return // the Reflector asks anew without the version that is too old
	}
	explained := explain(f.src.client.host, verb, f.resource, err)
	f.src.health.failed(f, explained)
	if f.needed && !f.watched.Load() && hopeless(err) {
		f.src.fail(explained)
	}
}

// checkDone tells the gate once this feed has listed and watches.
func (f *feed) checkDone() {
	if f.listed.Load() && f.watched.Load() {
		f.src.gate.done(f)
	}
}

var errUnexpectedType = errors.New("unexpected type")

// item translates an object, or takes it as [feed.Transformer] made it.
func (f *feed) item(obj any) (*item, error) {
	switch obj := obj.(type) {
	case *item:
		return obj, nil
	case *corev1.Service:
		return serviceItem(&f.src.config.Config, obj), nil
	case *discoveryv1.EndpointSlice:
		return sliceItem(obj), nil
	case *metav1.PartialObjectMetadata:
		return nodeItem(&f.src.config.Config, obj), nil
	}
	return nil, fmt.Errorf("%s: %w %T", f.name, errUnexpectedType, obj)
}

// Transformer has objects translated already on their way into the Reflector's temporary store during a streaming
// list, so that the untranslated cluster is never held as a whole.
func (f *feed) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return f.item(obj) }
}

// Add implements [cache.ReflectorStore].
func (f *feed) Add(obj any) error { return f.set("add", obj) }

// Update implements [cache.ReflectorStore].
func (f *feed) Update(obj any) error { return f.set("update", obj) }

func (f *feed) set(event string, obj any) error {
	i, err := f.item(obj)
	if err != nil {
		return err
	}
	f.src.metrics.events.WithLabelValues(f.resource.name, event).Inc()
	f.src.mirror.set(f, i)
	if f.seen != nil {
		f.seen(i)
	}
	return nil
}

// Delete implements [cache.ReflectorStore].
func (f *feed) Delete(obj any) error {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	meta, ok := obj.(metav1.Object)
	if !ok {
		return fmt.Errorf("%s: %w %T", f.name, errUnexpectedType, obj)
	}
	k := key{meta.GetNamespace(), meta.GetName()}
	f.src.metrics.events.WithLabelValues(f.resource.name, "delete").Inc()
	f.src.mirror.unset(f, k)
	if f.gone != nil {
		f.gone(k)
	}
	return nil
}

// Replace implements [cache.ReflectorStore]: the answer to a list.
func (f *feed) Replace(objs []any, _ string) error {
	items := make([]*item, 0, len(objs))
	for _, obj := range objs {
		i, err := f.item(obj)
		if err != nil {
			return err
		}
		items = append(items, i)
	}
	f.src.metrics.events.WithLabelValues(f.resource.name, "list").Inc()
	before := f.known()
	f.src.mirror.replace(f, items)
	if f.seen != nil {
		for _, i := range items {
			delete(before, i.key())
			f.seen(i)
		}
		for k := range before {
			f.gone(k)
		}
	}
	f.listed.Store(true)
	f.checkDone()
	return nil
}

// known copies the keys when somebody wants to be told of those that go.
func (f *feed) known() map[key]struct{} {
	if f.seen == nil {
		return nil
	}
	f.src.mirror.mu.Lock()
	defer f.src.mirror.mu.Unlock()
	out := make(map[key]struct{}, len(f.keys))
	for k := range f.keys {
		out[k] = struct{}{}
	}
	return out
}

// Resync implements [cache.ReflectorStore]. There is nothing to do: the store compares.
func (f *feed) Resync() error { return nil }

// endingClock lets the Reflector's waits end with the context: some of them watch the clock alone.
type endingClock struct {
	clock.RealClock
	ctx context.Context
}

// After implements [clock.Clock].
func (c endingClock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	fire := func() {
		select {
		case fired <- time.Now():
		default:
		}
	}
	timer := time.AfterFunc(d, fire)
	context.AfterFunc(c.ctx, func() { timer.Stop(); fire() })
	return fired
}
