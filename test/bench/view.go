// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// view is what one watcher has been told, as digests, and what it checks at every op and every Sync:
// an endpoint has a service, Local is right, what is deleted was there, and at a Sync each service is in a state
// that it really had.
type view struct {
	world *world
	node  int

	services  []serviceView
	endpoints map[uint64]uint64 // by hash of the path
	touched   []int             // services since the last Sync
	total     uint64
	ops       int
}

type serviceView struct {
	known     bool
	touched   bool
	endpoints int32
	digest    uint64
}

func newView(w *world, node int) *view {
	return &view{
		world: w, node: node % nodeCount,
		services:  make([]serviceView, w.services),
		endpoints: make(map[uint64]uint64, w.services*w.endpoints),
	}
}

// message takes an OpItem, and says whether it ended a change set.
func (v *view) message(b []byte) (synced bool, err error) {
	c := cursor{b}
	field, _, body, err := c.next()
	if err != nil {
		return false, err
	}
	switch field {
	case 1:
		return true, v.sync()
	case 2:
		return false, v.set(body)
	case 3:
		return false, v.delete(body)
	case 4:
		v.reset()
		return false, nil
	case 5:
		return v.batch(body)
	}
	return false, fmt.Errorf("op of unknown kind %d", field)
}

func (v *view) batch(b []byte) (synced bool, err error) {
	c := cursor{b}
	for {
		field, _, body, err := c.next()
		if err != nil || field == 0 {
			return synced, err
		}
		if synced {
			return true, errors.New("an op follows Sync")
		}
		if synced, err = v.message(body); err != nil {
			return synced, err
		}
	}
}

func (v *view) reset() {
	v.ops++
	v.touched, v.total = v.touched[:0], 0
	clear(v.services)
	clear(v.endpoints)
}

// parseRef reads a Ref.
func parseRef(b []byte) (set uint64, path []byte, err error) {
	c := cursor{b}
	for {
		field, number, body, err := c.next()
		if err != nil || field == 0 {
			return set, path, err
		}
		switch field {
		case 1:
			set = number
		case 2:
			path = body
		}
	}
}

// place reads a Ref that must be one of the world's.
func (v *view) place(ref []byte) (set uint64, path []byte, service int, endpoint []byte, err error) {
	if set, path, err = parseRef(ref); err != nil {
		return
	}
	if service, endpoint, err = servicePath(path); err == nil && (service < 0 || service >= len(v.services)) {
		err = fmt.Errorf("unknown path %q", path)
	}
	return
}

func (v *view) set(b []byte) error {
	v.ops++
	c := cursor{b}
	_, _, ref, err := c.next()
	if err != nil {
		return err
	}
	_, _, value, err := c.next()
	if err != nil {
		return err
	}
	set, path, i, endpoint, err := v.place(ref)
	if err != nil {
		return err
	}
	s := v.touch(i)
	if set == 1 && len(endpoint) == 0 {
		if !s.known {
			s.known = true
			v.total += serviceDigest(i)
		}
		return nil
	}
	if set != 2 || len(endpoint) == 0 {
		return fmt.Errorf("path %q in set %d", path, set)
	}
	return v.setEndpoint(s, path, value)
}

func (v *view) setEndpoint(s *serviceView, path, value []byte) error {
	if !s.known {
		return fmt.Errorf("orphan: endpoint %s has no service", path)
	}
	ep, err := parseEndpoint(value)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", path, err)
	}
	if ep.local != (nodeOf(ep.address) == v.node) || !ep.internal || !ep.external {
		return fmt.Errorf("endpoint %s: %+v is not how %s sees it", path, ep, nodeName(v.node))
	}
	key, digest := xxhash.Sum64(path), endpointDigest(ep.address, ep.port)
	if was, known := v.endpoints[key]; known {
		s.digest -= was
		v.total -= was
	} else {
		s.endpoints++
	}
	v.endpoints[key] = digest
	s.digest += digest
	v.total += digest
	return nil
}

func (v *view) delete(ref []byte) error {
	v.ops++
	_, path, i, endpoint, err := v.place(ref)
	if err != nil {
		return err
	}
	s := v.touch(i)
	if len(endpoint) == 0 {
		if !s.known || s.endpoints != 0 {
			return fmt.Errorf("service %s is deleted: known %v, endpoints %d", path, s.known, s.endpoints)
		}
		s.known = false
		v.total -= serviceDigest(i)
		return nil
	}
	key := xxhash.Sum64(path)
	was, known := v.endpoints[key]
	if !known {
		return fmt.Errorf("endpoint %s is deleted but was not there", path)
	}
	delete(v.endpoints, key)
	s.endpoints--
	s.digest -= was
	v.total -= was
	return nil
}

func (v *view) touch(i int) *serviceView {
	s := &v.services[i]
	if !s.touched {
		s.touched = true
		v.touched = append(v.touched, i)
	}
	return s
}

// sync checks what changed.
func (v *view) sync() error {
	v.ops++
	for _, i := range v.touched {
		s := &v.services[i]
		s.touched = false
		if s.known && !v.world.was(i, s.digest) {
			return fmt.Errorf("torn: %s with %d endpoints is in a state that it never had", serviceName(i), s.endpoints)
		}
	}
	v.touched = v.touched[:0]
	return nil
}
