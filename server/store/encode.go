// SPDX-License-Identifier: Apache-2.0

package store

import (
	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of package globalv1, see api/globalv1/api.proto.
const (
	infoHash = 1 // of ServiceInfo, EndpointInfo and NodeInfo

	serviceInfoService         = 2
	serviceInfoPublishNotReady = 3
	serviceInfoCreatedAt       = 4

	endpointInfoNamespace   = 2
	endpointInfoSourceName  = 3
	endpointInfoServiceName = 4
	endpointInfoEndpoint    = 6
	endpointInfoConditions  = 7
	endpointInfoPodName     = 8
	endpointInfoTopology    = 9
	endpointInfoHints       = 10

	nodeInfoNode = 2
)

// AppendInfo appends the marshalled globalv1.ServiceInfo.
func (s *Service) AppendInfo(b []byte) []byte {
	start := len(b)
	b = s.appendBody(b)
	return appendHash(b, xxhash.Sum64(b[start:]))
}

func (s *Service) appendBody(b []byte) []byte {
	b = appendText(b, serviceInfoService, s.wire)
	b = appendBool(b, serviceInfoPublishNotReady, s.publishNotReady)
	if s.createdAt != 0 {
		b = protowire.AppendTag(b, serviceInfoCreatedAt, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(s.createdAt))
	}
	return b
}

func (s *Service) hash() uint64 { return xxhash.Sum64(s.appendBody(nil)) }

// AppendInfo appends the marshalled globalv1.EndpointInfo of an endpoint of that service.
func (e *Endpoint) AppendInfo(b []byte, of *Service) []byte {
	start := len(b)
	namespace, name := splitKey(of.key)
	b = appendText(b, endpointInfoNamespace, namespace)
	b = appendText(b, endpointInfoSourceName, e.source)
	b = appendText(b, endpointInfoServiceName, name)
	b = appendMessage(b, endpointInfoEndpoint, e.wire)
	b = protowire.AppendTag(b, endpointInfoConditions, protowire.BytesType)
	b = protowire.AppendBytes(b, e.conditions.append(make([]byte, 0, 6)))
	if e.podName != "" {
		b = appendText(b, endpointInfoPodName, e.podName)
	}
	if e.node != "" || e.zone != "" {
		topology := appendText(nil, 1, e.node)
		b = protowire.AppendTag(b, endpointInfoTopology, protowire.BytesType)
		b = protowire.AppendBytes(b, appendText(topology, 2, e.zone))
	}
	if e.hints != nil {
		b = protowire.AppendTag(b, endpointInfoHints, protowire.BytesType)
		b = protowire.AppendBytes(b, e.hints.append(nil))
	}
	return appendHash(b, xxhash.Sum64(b[start:]))
}

func (c conditions) append(b []byte) []byte {
	b = appendBool(b, 1, c.ready)
	b = appendBool(b, 2, c.serving)
	return appendBool(b, 3, c.terminating)
}

func (h *hints) append(b []byte) []byte {
	for _, zone := range h.zones {
		b = appendMessage(b, 1, zone)
	}
	for _, node := range h.nodes {
		b = appendMessage(b, 2, node)
	}
	return b
}

// AppendInfo appends the marshalled globalv1.NodeInfo.
func (n *Node) AppendInfo(b []byte) []byte {
	start := len(b)
	b = appendMessage(b, nodeInfoNode, n.wire)
	return appendHash(b, xxhash.Sum64(b[start:]))
}

// appendText appends a string field, left out when it is empty as proto3 has it.
func appendText(b []byte, field protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return appendMessage(b, field, s)
}

// appendMessage appends a field of length-delimited type, also when it is empty.
func appendMessage(b []byte, field protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendString(b, s)
}

func appendBool(b []byte, field protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.VarintType)
	return protowire.AppendVarint(b, 1)
}

func appendHash(b []byte, hash uint64) []byte {
	b = protowire.AppendTag(b, infoHash, protowire.VarintType)
	return protowire.AppendVarint(b, hash)
}
