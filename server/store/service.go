// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
)

// Service is a service with its endpoints: what a change is about, and what a watcher is told about. It never changes.
type Service struct {
	key string // namespace/name

	// wire is the marshalled localv1.Service. Empty when there is no such service and only slices are held for it.
	wire            string
	publishNotReady bool
	internalLocal   bool
	externalLocal   bool
	headless        bool
	createdAt       int64 // Unix seconds

	slices    []slice     // by name
	endpoints []*Endpoint // of all slices that count, merged, by key
}

// slice is the endpoints of one EndpointSlice.
type slice struct {
	name      string
	headless  bool
	endpoints []*Endpoint // by key
}

// Slice is an EndpointSlice that belongs to a service.
type Slice struct {
	Namespace string
	Name      string
	// Service is the name of the service. It need not exist.
	Service string
	// Headless says that it is for headless services only (the label service.kubernetes.io/headless). For another service
	// it does not count.
	Headless  bool
	Endpoints []*globalv1.EndpointInfo
	// TriggeredAt is when what made the slice change to this happened; zero when that is not known.
	TriggeredAt time.Time
}

// Key is namespace/name, also the path of the service on the wire.
func (s *Service) Key() string { return s.key }

// Namespace of the service.
func (s *Service) Namespace() string { namespace, _ := splitKey(s.key); return namespace }

// Name of the service.
func (s *Service) Name() string { _, name := splitKey(s.key); return name }

// Exists says that there is such a service: not nil, and not slices alone.
func (s *Service) Exists() bool { return s != nil && s.wire != "" }

// Wire is the marshalled localv1.Service, encoded once when the service was set.
func (s *Service) Wire() string { return s.wire }

// PublishNotReady is spec.publishNotReadyAddresses.
func (s *Service) PublishNotReady() bool { return s.publishNotReady }

// InternalTrafficToLocal is internalTrafficPolicy: Local.
func (s *Service) InternalTrafficToLocal() bool { return s.internalLocal }

// ExternalTrafficToLocal is externalTrafficPolicy: Local.
func (s *Service) ExternalTrafficToLocal() bool { return s.externalLocal }

// CreatedAt is when the service was made, in Unix seconds; 0 when that is not known.
func (s *Service) CreatedAt() int64 { return s.createdAt }

// Endpoints are all endpoints of the service, by key. The caller must not change the slice.
func (s *Service) Endpoints() []*Endpoint { return s.endpoints }

// Info decodes the service; nil when it does not exist.
func (s *Service) Info() *globalv1.ServiceInfo {
	if !s.Exists() {
		return nil
	}
	info := &globalv1.ServiceInfo{
		Service:                  &localv1.Service{},
		PublishNotReadyAddresses: s.publishNotReady,
		CreatedAt:                s.createdAt,
		Hash:                     s.hash(),
	}
	mustUnmarshal(s.wire, info.Service)
	return info
}

// counting are the slices that count.
func (s *Service) counting() []slice {
	if s.headless || !slices.ContainsFunc(s.slices, func(sl slice) bool { return sl.headless }) {
		return s.slices
	}
	return slices.DeleteFunc(slices.Clone(s.slices), func(sl slice) bool { return sl.headless })
}

// Slices decodes the EndpointSlices of the service that count, by name.
func (s *Service) Slices() []*Slice {
	namespace, name := splitKey(s.key)
	out := make([]*Slice, 0, len(s.slices))
	for _, sl := range s.counting() {
		infos := make([]*globalv1.EndpointInfo, 0, len(sl.endpoints))
		for _, ep := range sl.endpoints {
			infos = append(infos, ep.info(namespace, name))
		}
		out = append(out, &Slice{Namespace: namespace, Name: sl.name, Service: name, Endpoints: infos})
	}
	return out
}

// empty says that nothing is held any more.
func (s *Service) empty() bool { return s.wire == "" && len(s.slices) == 0 }

// mustUnmarshal decodes what this package has encoded.
func mustUnmarshal(wire string, m proto.Message) {
	if err := proto.Unmarshal([]byte(wire), m); err != nil {
		panic(fmt.Sprintf("store: its own encoding of %T cannot be read: %v", m, err))
	}
}

// marshal encodes a message so that equal messages have equal bytes. It returns nothing when it cannot.
func marshal(m proto.Message) string { return string(appendMarshalled(nil, m)) }

func appendMarshalled(b []byte, m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(b, m)
	if err != nil {
		// Only text that is not UTF-8 gets here. It must not keep the others from being served.
		klog.ErrorS(err, "Not carried: it cannot be encoded", "message", m.ProtoReflect().Descriptor().FullName())
		return nil
	}
	return b
}
