// SPDX-License-Identifier: Apache-2.0

// Command oldevents is a backend as they were written for the retired project: it is told of single values and of
// service events, and drives its client itself.
package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/decoder"
	"sigs.k8s.io/kpng/client/localsink/filterreset"
	"sigs.k8s.io/kpng/client/serviceevents"
)

type backend struct {
	localsink.Config
	services map[string]*localv1.Service
}

var (
	_ decoder.Interface           = &backend{}
	_ serviceevents.PortsListener = &backend{}
	_ serviceevents.IPsListener   = &backend{}
)

func (b *backend) Setup() { fmt.Println("setup", b.NodeName) }
func (b *backend) Reset() { /* behind filterreset */ }
func (b *backend) Sync()  { fmt.Println("sync") }

func (b *backend) SetService(svc *localv1.Service) {
	fmt.Println("service", svc.NamespacedName())
	b.services[svc.NamespacedName()] = svc
}

func (b *backend) DeleteService(namespace, name string) { delete(b.services, namespace+"/"+name) }

func (b *backend) SetEndpoint(namespace, serviceName, key string, ep *localv1.Endpoint) {
	port, err := ep.PortMapping(b.services[namespace+"/"+serviceName].Ports[0])
	if err != nil {
		panic(err)
	}
	fmt.Printf("endpoint %s %s %s %s:%d\n", namespace, serviceName, key, ep.IPs.First(), port)
}

func (b *backend) DeleteEndpoint(namespace, serviceName, key string) {}

func (b *backend) AddPort(svc *localv1.Service, port *localv1.PortMapping) {
	fmt.Println("port", port.Port, "of", svc.NamespacedName())
}
func (b *backend) DeletePort(svc *localv1.Service, port *localv1.PortMapping) {}

func (b *backend) AddIP(svc *localv1.Service, ip string, kind serviceevents.IPKind) {
	fmt.Printf("ip %s (%v)\n", ip, kind)
}
func (b *backend) DeleteIP(svc *localv1.Service, ip string, kind serviceevents.IPKind) {}

func main() {
	b := &backend{services: map[string]*localv1.Service{}}
	flags := pflag.CommandLine
	epc := client.New(flags)
	b.BindFlags(flags)
	pflag.Parse()

	epc.Sink = filterreset.New(decoder.New(serviceevents.Wrap(b)))
	epc.CancelOnSignals()
	epc.Sink.Setup()
	for {
		if canceled := epc.Next(); canceled {
			return
		}
	}
}
