// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/server/serve"
	"sigs.k8s.io/kpng/server/store"
	"sigs.k8s.io/kpng/test/bench/apiserver"
	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// source is where proxies learn of Services.
type source interface {
	// change sets the endpoints of a Service and returns when the source had told of it: what no proxy can be
	// faster than.
	change(ctx context.Context, service, down int) (told time.Time, err error)
}

// apiSource is a real API server. It is filled further as larger sizes are wanted.
type apiSource struct {
	*apiserver.Server
	loaded int
	watch  *apiserver.Watch // of EndpointSlices
}

// loaders is how many requests are under way while the API server is filled.
const loaders = 16

func startAPISource(ctx context.Context, bin, dir string) (*apiSource, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	server, err := apiserver.Start(ctx, bin, dir)
	if err != nil {
		return nil, err
	}
	a := &apiSource{Server: server}
	if err := errors.Join(a.AddNamespace(ctx, namespace), a.addNode(ctx)); err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	return a, nil
}

// addNode makes the node that all proxies run on, each in a network of its own.
func (a *apiSource) addNode(ctx context.Context) error {
	if err := a.AddNode(ctx, nodeName, ""); err != nil {
		return err
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress}}},
	}
	return a.Do(ctx, http.MethodPatch, "/api/v1/nodes/"+nodeName+"/status", node, nil)
}

// grow fills the API server until it has so many Services.
func (a *apiSource) grow(ctx context.Context, services int) error {
	if a.watch != nil {
		a.watch.Stop()
		a.watch = nil
	}
	group, filling := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := a.loaded; i < services; i++ {
		group.Go(func() error {
			return errors.Join(
				a.Do(filling, http.MethodPost, "/api/v1/namespaces/"+namespace+"/services", serviceObject(i), nil),
				a.Do(filling, http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/"+namespace+"/endpointslices", sliceObject(i, noneDown), nil))
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	a.loaded = max(a.loaded, services)
	var err error
	a.watch, err = a.Watch(ctx, "")
	return err
}

func (a *apiSource) change(ctx context.Context, service, down int) (time.Time, error) {
	slice := sliceObject(service, down)
	if err := a.Do(ctx, http.MethodPut, cluster.Path("endpointslices", namespace, slice.Name), slice, nil); err != nil {
		return time.Time{}, err
	}
	select {
	case told := <-a.watch.Events:
		return told, nil
	case <-time.After(limit):
		return time.Time{}, errors.New("the API server tells nobody of a change")
	}
}

// storeSource is kpng's store and server in this process, for backends that are programs of their own: they come
// without the API server, so it can have more Services, and what is measured is the backend alone.
type storeSource struct {
	store  *store.Store
	socket string
	stop   func() error
}

func startStoreSource(ctx context.Context, dir string, services int) (*storeSource, error) {
	s := &storeSource{store: store.New(), socket: filepath.Join(dir, "api.sock")}
	for from := 0; from < services; from += 1000 {
		s.store.Update(func(tx *store.Tx) {
			for i := from; i < min(from+1000, services); i++ {
				tx.SetService(serviceInfo(i))
				tx.SetSlice(storeSlice(i, noneDown))
			}
		})
	}
	s.store.Update(func(tx *store.Tx) { tx.SetSynced() })
	server, err := serve.New(&serve.Config{Listen: []string{"unix://" + s.socket}, Local: true, MaxWatchers: 1}, s.store)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	s.stop = func() error {
		cancel()
		return <-ended
	}
	return s, nil
}

// change returns the time before the commit: what the server and the stream then take is counted in.
func (s *storeSource) change(_ context.Context, service, down int) (time.Time, error) {
	told := time.Now()
	s.store.Update(func(tx *store.Tx) { tx.SetSlice(storeSlice(service, down)) })
	return told, nil
}
