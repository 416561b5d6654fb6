// SPDX-License-Identifier: Apache-2.0

// Package decoder is the sink for backends that want to be told of every single value as it comes.
//
// It holds no state: the backend does. What it is told is final with Sync only; put filterreset before the decoder,
// and a reconnection is, for the backend, a change set like any other.
package decoder

import (
	"strings"

	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/localsink"
)

// ServicesListener is told of services.
type ServicesListener interface {
	// SetService is called when a service is added or updated.
	SetService(service *localv1.Service)
	// DeleteService is called when a service is gone.
	DeleteService(namespace, name string)
}

// EndpointsListener is told of endpoints. A key is unique within its service.
type EndpointsListener interface {
	// SetEndpoint is called when an endpoint is added or updated.
	SetEndpoint(namespace, serviceName, key string, endpoint *localv1.Endpoint)
	// DeleteEndpoint is called when an endpoint is gone.
	DeleteEndpoint(namespace, serviceName, key string)
}

// Interface is a backend that is told of every value. The messages belong to it. It may be a localsink.Asker too.
type Interface interface {
	ServicesListener
	EndpointsListener

	// Sync is called at the end of a change set.
	Sync()

	// Setup, WaitRequest and Reset are those of localsink.Sink.
	Setup()
	WaitRequest() (nodeName string, err error)
	Reset()
}

// Sink decodes ops for an Interface.
type Sink struct {
	Interface

	log   ops.Log
	begun bool // an op was sent since the backend was reset
}

var (
	_ localsink.Sink  = &Sink{}
	_ localsink.Asker = &Sink{}
)

// New returns a sink that decodes ops for a backend.
func New(backend Interface) *Sink {
	return &Sink{Interface: backend}
}

// Ask implements localsink.Asker for the backend.
func (s *Sink) Ask(req *localv1.WatchReq) { localsink.Ask(s.Interface, req) }

// Reset implements localsink.Sink.
func (s *Sink) Reset() {
	s.begun = false
	s.Interface.Reset()
}

// Send implements localsink.Sink.
func (s *Sink) Send(op *localv1.OpItem) error {
	return ops.Dispatch(op, handler{s.Interface, s}, &s.log)
}

// handler decodes.
type handler struct {
	backend Interface
	sink    *Sink
}

// Reset passes a Reset op on. A stream starts with one just after the sink was reset: that one says nothing new.
func (h handler) Reset() {
	if h.sink.begun {
		h.sink.Reset()
	}
}

func (h handler) Sync() error {
	h.sink.begun = true
	h.backend.Sync()
	return nil
}

func (h handler) Set(ref *localv1.Ref, raw []byte) error {
	h.sink.begun = true
	switch ref.Set {
	case localv1.Set_ServicesSet:
		if _, _, err := ops.ServicePath(ref.Path); err != nil {
			return err
		}
		service := &localv1.Service{}
		if err := proto.Unmarshal(raw, service); err != nil {
			return ops.Skip("service %.100q: %w", ref.Path, err)
		}
		h.backend.SetService(service)
		return nil
	case localv1.Set_EndpointsSet:
		service, key, err := ops.EndpointPath(ref.Path)
		if err != nil {
			return err
		}
		endpoint := &localv1.Endpoint{}
		if err := proto.Unmarshal(raw, endpoint); err != nil {
			return ops.Skip("endpoint %.100q: %w", ref.Path, err)
		}
		namespace, name, _ := strings.Cut(service, "/")
		h.backend.SetEndpoint(namespace, name, key, endpoint)
		return nil
	default:
		return ops.UnknownSet(ref)
	}
}

func (h handler) Delete(ref *localv1.Ref) error {
	h.sink.begun = true
	switch ref.Set {
	case localv1.Set_ServicesSet:
		namespace, name, err := ops.ServicePath(ref.Path)
		if err != nil {
			return err
		}
		h.backend.DeleteService(namespace, name)
		return nil
	case localv1.Set_EndpointsSet:
		service, key, err := ops.EndpointPath(ref.Path)
		if err != nil {
			return err
		}
		namespace, name, _ := strings.Cut(service, "/")
		h.backend.DeleteEndpoint(namespace, name, key)
		return nil
	default:
		return ops.UnknownSet(ref)
	}
}
