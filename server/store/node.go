// SPDX-License-Identifier: Apache-2.0

package store

import "sigs.k8s.io/kpng/api/globalv1"

// Node is a node of the cluster. It never changes.
type Node struct {
	name string
	zone string
	wire string // the marshalled globalv1.Node
}

// Name of the node.
func (n *Node) Name() string { return n.name }

// Zone is the topology.kubernetes.io/zone of the node, empty when it is not known.
func (n *Node) Zone() string { return n.zone }

// Info decodes the node.
func (n *Node) Info() *globalv1.Node {
	info := &globalv1.Node{}
	mustUnmarshal(n.wire, info)
	return info
}
