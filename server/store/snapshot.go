// SPDX-License-Identifier: Apache-2.0

package store

import (
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Snapshot is the state at one revision. It never changes; any number of readers may hold it.
type Snapshot struct {
	revision uint64
	synced   bool
	services *iradix.Tree[*Service] // by namespace/name
	nodes    *iradix.Tree[*Node]    // by name
	history  history
	size     Size
}

// Size counts what a snapshot holds.
type Size struct {
	Services  int // without those of which only slices are known
	Slices    int
	Endpoints int // after merging duplicates
	Nodes     int
}

func emptySnapshot() *Snapshot {
	return &Snapshot{services: iradix.New[*Service](), nodes: iradix.New[*Node]()}
}

// Revision counts the commits that led here.
func (s *Snapshot) Revision() uint64 { return s.revision }

// Synced says that the source has delivered a whole state, even an empty one. Until then there is nothing to serve.
func (s *Snapshot) Synced() bool { return s.synced }

// Size counts what the snapshot holds. It costs nothing.
func (s *Snapshot) Size() Size { return s.size }

// Service returns the service of that key (namespace/name), or nil.
func (s *Snapshot) Service(key string) *Service {
	svc, _ := s.services.Get([]byte(key))
	return svc
}

// Node returns the node of that name, or nil.
func (s *Snapshot) Node(name string) *Node {
	node, _ := s.nodes.Get([]byte(name))
	return node
}

// Services yields everything held under a service's name, ordered by namespace/name, also where only slices are
// known ([Service.Exists] is false).
func (s *Snapshot) Services() iter.Seq[*Service] { return values(s.services) }

// Nodes yields all nodes, ordered by name.
func (s *Snapshot) Nodes() iter.Seq[*Node] { return values(s.nodes) }

func values[V any](tree *iradix.Tree[V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		it := tree.Root().Iterator()
		for _, v, ok := it.Next(); ok; _, v, ok = it.Next() {
			if !yield(v) {
				return
			}
		}
	}
}
