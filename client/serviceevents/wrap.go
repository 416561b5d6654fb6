// SPDX-License-Identifier: Apache-2.0

package serviceevents

import (
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/decoder"
)

// Wrap returns a backend that is the given one, told of events too: those for which it implements the listener. It is
// told of a service before the events about it, and of a deletion after them.
//
// The backend should be behind a filterreset sink: the events of services that went away during a broken connection
// come from their deletion, which filterreset sees to.
func Wrap(backend decoder.Interface) decoder.Interface {
	listener := New()
	listener.PortsListener, _ = backend.(PortsListener)
	listener.IPsListener, _ = backend.(IPsListener)
	listener.IPPortsListener, _ = backend.(IPPortsListener)
	listener.TrafficPolicyListener, _ = backend.(TrafficPolicyListener)
	listener.SessionAffinityListener, _ = backend.(SessionAffinityListener)
	return wrapper{backend, listener}
}

type wrapper struct {
	decoder.Interface
	listener *ServicesListener
}

// Ask implements localsink.Asker for the backend.
func (w wrapper) Ask(req *localv1.WatchReq) { localsink.Ask(w.Interface, req) }

func (w wrapper) SetService(svc *localv1.Service) {
	w.Interface.SetService(svc)
	w.listener.SetService(svc)
}

func (w wrapper) DeleteService(namespace, name string) {
	w.listener.DeleteService(namespace, name)
	w.Interface.DeleteService(namespace, name)
}
