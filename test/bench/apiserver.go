// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// apiServer is a real etcd and kube-apiserver that hold a world.
type apiServer struct {
	*cluster.Cluster
	client *http.Client // without a time limit, for watches
}

// loaders is how many requests are under way while the API server is filled.
const loaders = 16

// startAPIServer starts them without controllers: they would add an empty EndpointSlice to each Service.
func startAPIServer(ctx context.Context, bin, dir string) (*apiServer, error) {
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
	a := &apiServer{Cluster: c}
	if a.client, err = httpClient(dir); err != nil {
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

// load makes the namespace, Services and EndpointSlices of a world. Without labels they are none of kpng's business.
func (a *apiServer) load(ctx context.Context, w *world, ns string, labels map[string]string) error {
	if err := a.AddNamespace(ctx, ns); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := range w.services {
		group.Go(func() error {
			return errors.Join(
				a.Do(ctx, http.MethodPost, "/api/v1/namespaces/"+ns+"/services", serviceObject(i, ns, labels), nil),
				a.Do(ctx, http.MethodPost, "/apis/discovery.k8s.io/v1/namespaces/"+ns+"/endpointslices", w.sliceObject(w.state(i), ns, labels), nil))
		})
	}
	return group.Wait()
}

func labelled() map[string]string {
	return map[string]string{"service.kubernetes.io/service-proxy-name": proxyName}
}

func serviceObject(i int, ns string, labels map[string]string) *corev1.Service {
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: serviceName(i), Labels: labels},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": serviceName(i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if labels == nil {
		svc.Spec.ClusterIP = corev1.ClusterIPNone // saves the API server an IPAddress object for each
	}
	return svc
}

func (w *world) sliceObject(s serviceState, ns string, labels map[string]string) *discoveryv1.EndpointSlice {
	all := map[string]string{discoveryv1.LabelServiceName: serviceName(s.Service)}
	for k, v := range labels {
		all[k] = v
	}
	eps, ports := w.endpointObjects(s)
	return &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: sliceName(s.Service), Labels: all},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: eps, Ports: ports,
	}
}

func sliceName(i int) string { return serviceName(i) + "-abcde" }

func (w *world) endpointObjects(s serviceState) ([]discoveryv1.Endpoint, []discoveryv1.EndpointPort) {
	eps := make([]discoveryv1.Endpoint, w.endpoints)
	zone := "zone-a"
	for j := range eps {
		address := w.address(s.Service, j)
		node, ready := nodeName(nodeOf(address)), j != s.Down
		eps[j] = discoveryv1.Endpoint{
			Addresses:  []string{addressText(address)},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podName(s.Service, j)},
		}
	}
	name, port, protocol := "http", int32(s.Port), corev1.ProtocolTCP
	return eps, []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}}
}

// apply makes a change, as the EndpointSlice controller would: the whole slice is written.
func (a *apiServer) apply(ctx context.Context, w *world, s serviceState) error {
	return a.put(ctx, w.sliceObject(s, namespace, labelled()))
}

func (a *apiServer) put(ctx context.Context, slice *discoveryv1.EndpointSlice) error {
	return a.Do(ctx, http.MethodPut, cluster.Path("endpointslices", slice.Namespace, slice.Name), slice, nil)
}

// directWatch notes when the API server told of each change: what kpng cannot be faster than.
type directWatch struct {
	events chan time.Time
	stop   func()
}

func (a *apiServer) watch(ctx context.Context) (*directWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	query := url.Values{"watch": {"1"}, "labelSelector": {"service.kubernetes.io/service-proxy-name=" + proxyName}}
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
	resp, err := a.client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	d := &directWatch{events: make(chan time.Time, 1), stop: cancel}
	go func() {
		defer resp.Body.Close()
		lines := bufio.NewReaderSize(resp.Body, 1<<20)
		for {
			if _, err := lines.ReadSlice('\n'); err != nil {
				return
			}
			select {
			case d.events <- time.Now():
			case <-ctx.Done():
				return
			}
		}
	}()
	return d, nil
}

// requests counts the lists and watches that the API server was asked for, of what kpng reads.
func (a *apiServer) requests(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	total := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		text := lines.Text()
		counts := strings.HasPrefix(text, "apiserver_request_total{") || strings.HasPrefix(text, "apiserver_longrunning_requests{")
		ours := strings.Contains(text, `resource="services"`) || strings.Contains(text, `resource="endpointslices"`) || strings.Contains(text, `resource="nodes"`)
		reads := strings.Contains(text, `verb="LIST"`) || strings.Contains(text, `verb="WATCH"`)
		if !counts || !ours || !reads {
			continue
		}
		value := text[strings.LastIndexByte(text, ' ')+1:]
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", text, err)
		}
		total += int(n)
	}
	return total, nil
}
