// SPDX-License-Identifier: Apache-2.0

package dump

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

// State is what a dump holds, ready for the store.
type State struct {
	Services []*globalv1.ServiceInfo
	Slices   []*store.Slice
	Nodes    []*globalv1.Node

	// Unknown tells of fields that are not known and were ignored.
	Unknown []string
}

// document is the JSON of a dump.
type document struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Services   []json.RawMessage `json:"services"`
	Slices     []json.RawMessage `json:"slices"`
	Nodes      []json.RawMessage `json:"nodes"`
}

// Read reads a dump, YAML or JSON. An error names the object and the field; then there is no state at all.
func Read(data []byte) (*State, error) {
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var doc document
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	if doc.APIVersion != APIVersion || doc.Kind != Kind {
		return nil, fmt.Errorf("apiVersion %q, kind %q: a dump has %q and %q", doc.APIVersion, doc.Kind, APIVersion, Kind)
	}
	state := &State{}
	for i, raw := range doc.Nodes {
		if err := state.addNode(raw); err != nil {
			return nil, fmt.Errorf("nodes[%d]: %w", i, err)
		}
	}
	for i, raw := range doc.Services {
		if err := state.addService(raw); err != nil {
			return nil, fmt.Errorf("services[%d]: %w", i, err)
		}
	}
	for i, raw := range doc.Slices {
		if err := state.addSlice(raw); err != nil {
			return nil, fmt.Errorf("slices[%d]: %w", i, err)
		}
	}
	return state, nil
}

// unmarshal is strict about types and values. Of a field that is not known, which a newer kpng may have written, it
// makes a note.
func (s *State) unmarshal(raw []byte, into proto.Message) error {
	err := protojson.Unmarshal(raw, into)
	if err == nil {
		return nil
	}
	proto.Reset(into)
	if lenient := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(raw, into); lenient != nil {
		return plain(lenient)
	}
	s.Unknown = append(s.Unknown, plain(err).Error())
	return nil
}

// beforeMessage is what protojson puts before its messages: its name, with a space that is sometimes another
// character, and a place in the JSON that was made of the YAML, of which the reader knows nothing.
var beforeMessage = regexp.MustCompile(`^proto:[\s\x{a0}]*|\(line \d+:\d+\): `)

func plain(err error) error { return errors.New(beforeMessage.ReplaceAllString(err.Error(), "")) }

func (s *State) addNode(raw []byte) error {
	node := &globalv1.Node{}
	if err := s.unmarshal(raw, node); err != nil {
		return err
	}
	if err := checkName("Name", node.Name); err != nil {
		return err
	}
	if node.Topology == nil {
		node.Topology = &globalv1.TopologyInfo{}
	}
	node.Topology.Node = node.Name
	s.Nodes = append(s.Nodes, node)
	return nil
}

func (s *State) addService(raw []byte) error {
	info := &globalv1.ServiceInfo{}
	if err := s.unmarshal(raw, info); err != nil {
		return err
	}
	svc := info.Service
	if err := errors.Join(checkName("Service.Namespace", svc.GetNamespace()), checkName("Service.Name", svc.GetName())); err != nil {
		return err
	}
	if svc.IPs == nil {
		svc.IPs = &localv1.ServiceIPs{}
	}
	if svc.IPs.ClusterIPs == nil {
		svc.IPs.ClusterIPs = &localv1.IPSet{}
	}
	if svc.IPs.ExternalIPs == nil {
		svc.IPs.ExternalIPs = &localv1.IPSet{}
	}
	if err := checkService(svc); err != nil {
		return fmt.Errorf("%s/%s: %w", svc.Namespace, svc.Name, err)
	}
	info.Hash = 0
	s.Services = append(s.Services, info)
	return nil
}

func checkService(svc *localv1.Service) error {
	errs := []error{
		checkIPs("IPs.ClusterIPs", svc.IPs.ClusterIPs),
		checkIPs("IPs.ExternalIPs", svc.IPs.ExternalIPs),
		checkIPs("IPs.LoadBalancerIPs", svc.IPs.LoadBalancerIPs),
	}
	for i, port := range svc.Ports {
		field := fmt.Sprintf("Ports[%d].", i)
		errs = append(errs, checkPort(field+"Port", port.Port, 1), checkPort(field+"NodePort", port.NodePort, 0),
			checkPort(field+"TargetPort", port.TargetPort, 0))
		if _, known := localv1.Protocol_name[int32(port.Protocol)]; !known || port.Protocol == localv1.Protocol_UnknownProtocol {
			errs = append(errs, fmt.Errorf("%sProtocol must be TCP, UDP or SCTP", field))
		}
	}
	for i, filter := range svc.IPFilters {
		errs = append(errs, checkIPs(fmt.Sprintf("IPFilters[%d].TargetIPs", i), filter.TargetIPs))
		for _, text := range filter.SourceRanges {
			if _, err := netip.ParsePrefix(text); err != nil {
				errs = append(errs, fmt.Errorf("IPFilters[%d].SourceRanges: %q is not a CIDR", i, text))
			}
		}
	}
	return errors.Join(errs...)
}

func (s *State) addSlice(raw []byte) error {
	var in sliceJSON
	if err := json.Unmarshal(raw, &in); err != nil {
		return err
	}
	if err := errors.Join(checkName("Namespace", in.Namespace), checkName("Name", in.Name), checkName("Service", in.Service)); err != nil {
		return err
	}
	slice := &store.Slice{Namespace: in.Namespace, Name: in.Name, Service: in.Service}
	for i, raw := range in.Endpoints {
		info := &globalv1.EndpointInfo{}
		err := s.unmarshal(raw, info)
		if err == nil {
			err = checkEndpoint(info.Endpoint)
		}
		if err != nil {
			return fmt.Errorf("%s/%s: Endpoints[%d]: %w", in.Namespace, in.Name, i, err)
		}
		info.Hash, info.Namespace, info.SourceName, info.ServiceName = 0, in.Namespace, in.Name, in.Service
		info.Endpoint.Local, info.Endpoint.Scopes = false, nil // these depend on who looks
		slice.Endpoints = append(slice.Endpoints, info)
	}
	s.Slices = append(s.Slices, slice)
	return nil
}

func checkEndpoint(ep *localv1.Endpoint) error {
	if len(ep.GetIPs().GetV4())+len(ep.GetIPs().GetV6()) == 0 {
		return errors.New("Endpoint.IPs has no address")
	}
	errs := []error{checkIPs("Endpoint.IPs", ep.IPs)}
	for i, port := range ep.PortOverrides {
		errs = append(errs, checkPort(fmt.Sprintf("Endpoint.PortOverrides[%d].Port", i), port.GetPort(), 1))
	}
	return errors.Join(errs...)
}

// checkName refuses what would make the paths of the wire protocol (namespace/name) ambiguous.
func checkName(field, name string) error {
	if name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("%s %q must be there and have no slash", field, name)
	}
	return nil
}

func checkPort(field string, n, least int32) error {
	if n < least || n > 65535 {
		return fmt.Errorf("%s %d is not in %d..65535", field, n, least)
	}
	return nil
}

func checkIPs(field string, set *localv1.IPSet) error {
	for _, text := range set.GetV4() {
		if addr, err := netip.ParseAddr(text); err != nil || !addr.Is4() {
			return fmt.Errorf("%s.V4: %q is not an IPv4 address", field, text)
		}
	}
	for _, text := range set.GetV6() {
		if addr, err := netip.ParseAddr(text); err != nil || !addr.Is6() || addr.Zone() != "" {
			return fmt.Errorf("%s.V6: %q is not an IPv6 address", field, text)
		}
	}
	return nil
}
