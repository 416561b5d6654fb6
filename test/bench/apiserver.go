// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/test/bench/apiserver"
	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// apiServer is one that holds a world.
type apiServer struct {
	*apiserver.Server
}

// loaders is how many requests are under way while the API server is filled.
const loaders = 16

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

// requests counts the lists and watches that the API server was asked for, of what kpng reads.
func (a *apiServer) requests(ctx context.Context) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	resp, err := a.Client.Do(req)
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

// watch notes when the API server told of each change.
func (a *apiServer) watch(ctx context.Context) (*apiserver.Watch, error) {
	return a.Watch(ctx, "service.kubernetes.io/service-proxy-name="+proxyName)
}
