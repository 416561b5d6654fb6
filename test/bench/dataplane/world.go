// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// The addresses of the lab. Those of endpoints start where their bytes are unlikely to stand in a netlink message by
// chance, as a commit is recognised by them.
const (
	namespace    = "bench"
	nodeName     = "bench-node"
	nodeAddress  = "192.168.50.1"
	podCIDR      = "10.0.0.0/12" // the client's address too: it is a pod on the node
	serviceCIDR  = "10.96.0.0/16"
	endpointCIDR = "10.0.0.0/13"
	endpoints    = 10 // of each Service
	servicePort  = 80
	podPort      = 8080
	otherNodes   = 100 // that endpoints are said to be on
)

var firstEndpoint = netip.AddrFrom4([4]byte{10, 4, 0, 0})

// noneDown says that all endpoints of a Service are ready.
const noneDown = -1

func serviceName(i int) string { return fmt.Sprintf("svc-%06d", i) }

func sliceName(i int) string { return serviceName(i) + "-abcde" }

func podName(i, j int) string { return fmt.Sprintf("%s-7d4b9c6f5-%05d", serviceName(i), j) }

func farNode(i, j int) string { return fmt.Sprintf("node-%d", (i*endpoints+j)%otherNodes) }

// clusterIP is the address of the i-th Service; the API server is told, so that nobody has to ask it.
func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(1 + i/250), byte(1 + i%250)})
}

func serviceAddress(i int) netip.AddrPort { return netip.AddrPortFrom(clusterIP(i), servicePort) }

// endpointIP is the address of the j-th endpoint of the i-th Service. All of them lead to the one pod of the lab.
func endpointIP(i, j int) netip.Addr {
	a, n := firstEndpoint.As4(), i*endpoints+j
	return netip.AddrFrom4([4]byte{a[0], a[1] + byte(n>>16), byte(n >> 8), byte(n)})
}

func serviceObject(i int) *corev1.Service {
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)},
		Spec: corev1.ServiceSpec{
			ClusterIP: clusterIP(i).String(),
			Ports:     []corev1.ServicePort{{Name: "http", Port: servicePort}},
		},
	}
}

// sliceObject is the EndpointSlice of a Service of which one endpoint may be down.
func sliceObject(i, down int) *discoveryv1.EndpointSlice {
	eps := make([]discoveryv1.Endpoint, endpoints)
	for j := range eps {
		node, ready := farNode(i, j), j != down
		eps[j] = discoveryv1.Endpoint{
			Addresses:  []string{endpointIP(i, j).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
			NodeName:   &node,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: podName(i, j)},
		}
	}
	name, port, protocol := "http", int32(podPort), corev1.ProtocolTCP
	return &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: sliceName(i),
			Labels: map[string]string{discoveryv1.LabelServiceName: serviceName(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: eps,
		Ports: []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
	}
}

// serviceInfo and storeSlice are the same as kpng's store holds them.
func serviceInfo(i int) *globalv1.ServiceInfo {
	return &globalv1.ServiceInfo{Service: &localv1.Service{
		Namespace: namespace, Name: serviceName(i), Type: "ClusterIP",
		IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet(clusterIP(i).String())},
		Ports: []*localv1.PortMapping{{Name: "http", Protocol: localv1.Protocol_TCP, Port: servicePort, TargetPort: podPort}},
	}}
}

func storeSlice(i, down int) *store.Slice {
	out := &store.Slice{Namespace: namespace, Name: sliceName(i), Service: serviceName(i)}
	for j := range endpoints {
		ready := j != down
		out.Endpoints = append(out.Endpoints, &globalv1.EndpointInfo{
			Namespace: namespace, SourceName: out.Name, ServiceName: out.Service,
			Endpoint: &localv1.Endpoint{
				IPs:           localv1.NewIPSet(endpointIP(i, j).String()),
				PortOverrides: []*localv1.PortName{{Name: "http", Port: podPort}},
			},
			Conditions: &globalv1.EndpointConditions{Ready: ready, Serving: ready},
			PodName:    podName(i, j),
			Topology:   &globalv1.TopologyInfo{Node: farNode(i, j)},
		})
	}
	return out
}
