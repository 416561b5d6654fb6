// SPDX-License-Identifier: Apache-2.0

//go:build linux

package truth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"sigs.k8s.io/kpng/backends/internal/dataplane/nstest"
	"sigs.k8s.io/kpng/internal/netlab"
	"sigs.k8s.io/kpng/test/e2e/cluster"
)

// onlyServedBy are ports that one pod serves, beside nstest.Port, which all do.
var onlyServedBy = map[string]int32{"n1-b": 7001, "n2-a": 7002}

// endpoint is an endpoint as a row of a slice; it is ready unless it says otherwise.
type endpoint struct {
	pod string
	// The conditions are what they are in the API, so that an odd mix can be written.
	notReady, notServing, terminating bool
	port                              int32 // nstest.Port when 0
	zones, nodes                      []string
	only                              string // the name of the one port that it has
	nodeless                          bool   // the slice does not say where it is
}

// at are ready endpoints.
func at(pods ...string) []endpoint {
	var list []endpoint
	for _, pod := range pods {
		list = append(list, endpoint{pod: pod})
	}
	return list
}

// terminating are endpoints that go, and still serve.
func terminating(pods ...string) []endpoint {
	list := at(pods...)
	for i := range list {
		list[i].notReady, list[i].terminating = true, true
	}
	return list
}

// spec is what a case asks of a Service. All have both families, and port 80 in three protocols.
type spec struct {
	endpoints []endpoint
	change    func(*corev1.ServiceSpec)
	// outside gives it every address that a service can have: node port, external IP, load balancer's IP.
	outside bool
	// onNode has n1 own the load balancer's IP. ipMode is what its controller says of it, "" is nothing.
	onNode bool
	ipMode corev1.LoadBalancerIPMode
}

// service is a Service of the table, with the addresses to ask.
type service struct {
	spec
	name string

	clusterIP, nodePort, externalIP, loadBalancerIP target
	healthPort                                      int32
}

// target is where a question is sent: an address of each family and a port.
type target struct {
	name string
	ip   func(f nstest.Family) netip.Addr
	port uint16
}

func (t target) in(f nstest.Family) netip.AddrPort { return netip.AddrPortFrom(t.ip(f), t.port) }

// on is another port of the same address.
func (t target) on(port uint16) target { t.port = port; return t }

// of is the same port of a host.
func (t target) of(host string) target {
	t.name += " of " + host
	t.ip = func(f nstest.Family) netip.Addr { return f.Addr(host) }
	return t
}

// loopback is the same port of the node that asks itself.
func (t target) loopback() target {
	t.name += " of the loopback"
	t.ip = func(f nstest.Family) netip.Addr {
		if f.V6 {
			return netip.IPv6Loopback()
		}
		return netip.MustParseAddr("127.0.0.1")
	}
	return t
}

// newService numbers a service: all that it has is told apart by the number, from 1 to 99.
func newService(n int, name string, s spec) *service {
	within := func(cidr string) netip.Addr { return netip.MustParsePrefix(cidr).Addr() }
	return &service{
		spec: s, name: name,
		clusterIP: target{"cluster IP", func(f nstest.Family) netip.Addr {
			if f.V6 {
				return offset(within(cluster.ServiceCIDR6), n)
			}
			return offset(within(cluster.ServiceCIDR4), n)
		}, 80},
		nodePort:       target{"node port", func(f nstest.Family) netip.Addr { return f.Addr("n1") }, uint16(30000 + n)},
		externalIP:     target{"external IP", func(f nstest.Family) netip.Addr { return f.VIP(n) }, 80},
		loadBalancerIP: target{"load balancer's IP", func(f nstest.Family) netip.Addr { return f.VIP(100 + n) }, 80},
		healthPort:     int32(31000 + n),
	}
}

// offset is far from the first addresses of the range, which the API server takes for itself.
func offset(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-2], b[len(b)-1] = 1, byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a
}

// both is an address of each family, IPv4 first.
func (t target) both() []string {
	var list []string
	for _, f := range nstest.Families {
		list = append(list, t.ip(f).String())
	}
	return list
}

// object is the Service.
func (s *service) object() *corev1.Service {
	policy := corev1.IPFamilyPolicyRequireDualStack
	svc := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: s.name},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, IPFamilyPolicy: &policy,
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIP:  s.clusterIP.both()[0], ClusterIPs: s.clusterIP.both(),
		},
	}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name: strings.ToLower(string(protocol)), Protocol: protocol, Port: 80, TargetPort: intstr.FromInt32(nstest.Port),
		})
	}
	if s.outside {
		svc.Spec.Type = corev1.ServiceTypeLoadBalancer
		svc.Spec.ExternalIPs = s.externalIP.both()
		for i := range svc.Spec.Ports {
			svc.Spec.Ports[i].NodePort = int32(s.nodePort.port)
		}
	}
	if s.change != nil {
		s.change(&svc.Spec)
	}
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		svc.Spec.HealthCheckNodePort = s.healthPort
	}
	return svc
}

// slices are its EndpointSlices by name: one for each family and set of ports.
func (s *service) slices() map[string]*discoveryv1.EndpointSlice {
	all := map[string]*discoveryv1.EndpointSlice{}
	for _, f := range nstest.Families {
		for _, ep := range s.endpoints {
			port := ep.port
			if port == 0 {
				port = nstest.Port
			}
			name := strings.ToLower(fmt.Sprintf("%s-%s-%d%s", s.name, familyName(f), port, ep.only))
			if all[name] == nil {
				all[name] = s.slice(name, f, port, ep.only)
			}
			all[name].Endpoints = append(all[name].Endpoints, ep.object(f))
		}
	}
	return all
}

func familyName(f nstest.Family) discoveryv1.AddressType {
	if f.V6 {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

func (s *service) slice(name string, f nstest.Family, port int32, only string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: s.name},
		},
		AddressType: familyName(f),
	}
	for _, p := range s.object().Spec.Ports {
		if only == "" || only == p.Name {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
		}
	}
	return slice
}

func (ep endpoint) object(f nstest.Family) discoveryv1.Endpoint {
	ready, serving, node := !ep.notReady, !ep.notServing, ep.pod[:2]
	e := discoveryv1.Endpoint{
		Addresses:  []string{f.Addr(ep.pod).String()},
		NodeName:   &node,
		Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &ep.terminating},
	}
	if ep.nodeless {
		e.NodeName = nil
	}
	if len(ep.zones)+len(ep.nodes) == 0 {
		return e
	}
	e.Hints = &discoveryv1.EndpointHints{}
	for _, zone := range ep.zones {
		e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: zone})
	}
	for _, node := range ep.nodes {
		e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: node})
	}
	return e
}

const (
	servicesPath = "/api/v1/namespaces/" + namespace + "/services"
	slicesPath   = "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
)

// create makes the Service, then its slices.
func (s *service) create(ctx context.Context) error {
	if err := api.Do(ctx, http.MethodPost, servicesPath, s.object(), nil); err != nil {
		return err
	}
	if err := s.setIngress(ctx, s.outside); err != nil {
		return err
	}
	return s.setEndpoints(ctx, s.endpoints)
}

// setIngress reports the load balancer's IP as its controller would, or none.
func (s *service) setIngress(ctx context.Context, has bool) error {
	if !s.outside {
		return nil
	}
	ingress := []corev1.LoadBalancerIngress{}
	for _, ip := range s.loadBalancerIP.both() {
		if has {
			i := corev1.LoadBalancerIngress{IP: ip}
			if s.ipMode != "" {
				i.IPMode = &s.ipMode
			}
			ingress = append(ingress, i)
		}
	}
	status := map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}
	return api.Do(ctx, http.MethodPatch, servicesPath+"/"+s.name+"/status", map[string]any{"status": status}, nil)
}

// update changes the Service, and the ports of its slices.
func (s *service) update(ctx context.Context, change func(*corev1.ServiceSpec)) error {
	s.change = change
	if err := api.Do(ctx, http.MethodPatch, servicesPath+"/"+s.name, map[string]any{"spec": s.object().Spec}, nil); err != nil {
		return err
	}
	return s.setEndpoints(ctx, s.endpoints)
}

// setProxy labels the Service as that of another proxy; of none when nil.
func (s *service) setProxy(ctx context.Context, name *string) error {
	labels := map[string]any{"service.kubernetes.io/service-proxy-name": name}
	return api.Do(ctx, http.MethodPatch, servicesPath+"/"+s.name, map[string]any{"metadata": map[string]any{"labels": labels}}, nil)
}

// setEndpoints writes the slices; those that have nothing left stay, and are empty.
func (s *service) setEndpoints(ctx context.Context, endpoints []endpoint) error {
	before := s.slices()
	s.endpoints = endpoints
	after := s.slices()
	for name, slice := range before {
		if after[name] == nil {
			slice.Endpoints = []discoveryv1.Endpoint{}
			after[name] = slice
		}
	}
	var errs []error
	for name, slice := range after {
		err := api.Do(ctx, http.MethodPut, slicesPath+"/"+name, slice, nil)
		if status := (*cluster.StatusError)(nil); errors.As(err, &status) && status.Code == http.StatusNotFound {
			err = api.Do(ctx, http.MethodPost, slicesPath, slice, nil)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// remove deletes the Service and its slices.
func (s *service) remove(ctx context.Context) error {
	err := api.Do(ctx, http.MethodDelete, servicesPath+"/"+s.name, nil, nil)
	for name := range s.slices() {
		err = errors.Join(err, api.Do(ctx, http.MethodDelete, slicesPath+"/"+name, nil, nil))
	}
	return err
}

// networks that questions are asked in.
var networks = []string{nstest.TCP, nstest.UDP, nstest.SCTP}

func probesOf(network string, to netip.AddrPort) []netlab.Probe {
	p := netlab.Probe{Network: network, To: to}
	if network != nstest.UDP {
		return []netlab.Probe{p}
	}
	big := p
	big.Size = 4000 // in fragments
	return []netlab.Probe{p, big}
}

// spoken are the networks that can be asked in here.
func spoken() []string {
	if nstest.SCTPOfKernel() {
		return slices.DeleteFunc(slices.Clone(networks), func(n string) bool { return n == nstest.SCTP })
	}
	return networks
}
