// SPDX-License-Identifier: Apache-2.0

// Package apiserver starts the real API server that the benchmarks fill and watch.
package apiserver

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// Server is a real etcd and kube-apiserver.
type Server struct {
	*cluster.Cluster
	Client *http.Client // without a time limit, for watches
}

// Start starts them without controllers: they would add an empty EndpointSlice to each Service.
func Start(ctx context.Context, bin, dir string) (*Server, error) {
	programs := filepath.Join(dir, "programs")
	if err := os.Mkdir(programs, 0o700); err != nil {
		return nil, err
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := os.Symlink(filepath.Join(bin, name), filepath.Join(programs, name)); err != nil {
			return nil, err
		}
	}
	idle := filepath.Join(programs, "kube-controller-manager")
	if err := os.WriteFile(idle, []byte("#!/bin/sh\nexec sleep infinity\n"), 0o700); err != nil { //nolint:gosec // it is a program
		return nil, err
	}
	c, err := cluster.Start(ctx, programs, dir)
	if err != nil {
		return nil, err
	}
	a := &Server{Cluster: c}
	if a.Client, err = httpClient(dir); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return a, nil
}

func httpClient(dir string) (*http.Client, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key"))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots, MinVersion: tls.VersionTLS13}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}, nil
}

// Watch notes when the API server told of each change: what kpng cannot be faster than.
type Watch struct {
	Events chan time.Time
	Stop   func()
}

// Watch tells of the changes of EndpointSlices that a label selector chooses ("": all).
func (a *Server) Watch(ctx context.Context, selector string) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	query := url.Values{"watch": {"1"}, "labelSelector": {selector}}
	var list struct {
		Metadata metav1.ListMeta
	}
	path := "/apis/discovery.k8s.io/v1/endpointslices?"
	if err := a.Do(ctx, http.MethodGet, path+"limit=1&"+url.Values{"labelSelector": query["labelSelector"]}.Encode(), nil, &list); err != nil {
		cancel()
		return nil, err
	}
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path+query.Encode(), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	d := &Watch{Events: make(chan time.Time, 1), Stop: cancel}
	go func() {
		defer resp.Body.Close()
		lines := bufio.NewReaderSize(resp.Body, 1<<20)
		for {
			if _, err := lines.ReadSlice('\n'); err != nil {
				return
			}
			select {
			case d.Events <- time.Now():
			case <-ctx.Done():
				return
			}
		}
	}()
	return d, nil
}
