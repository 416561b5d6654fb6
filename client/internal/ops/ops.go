// SPDX-License-Identifier: Apache-2.0

// Package ops is what every sink needs to read the protocol without trusting it: a server, or what sits between,
// may send anything, and an op that makes no sense is skipped with a log line instead of ending the backend.
package ops

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/kpng/api/localv1"
)

// Handler is what a sink does with the ops that make sense. The handler may keep what it is given.
type Handler interface {
	// Set and Delete are called with a reference that is not nil. An error means that the op is skipped.
	Set(ref *localv1.Ref, bytes []byte) error
	Delete(ref *localv1.Ref) error
	Reset()
	Sync() error
}

// Skipped wraps the reason why an op was skipped, as opposed to an error of the sink's own work.
type Skipped struct{ Err error }

func (e *Skipped) Error() string { return e.Err.Error() }
func (e *Skipped) Unwrap() error { return e.Err }

// Skip is an error for an op that makes no sense.
func Skip(format string, args ...any) error { return &Skipped{fmt.Errorf(format, args...)} }

// Dispatch gives an op, or the ops of a batch one by one, to a handler. What makes no sense goes to the log; any
// other error ends the dispatch and is returned.
func Dispatch(op *localv1.OpItem, h Handler, log *Log) error {
	return Each(op, log, func(op *localv1.OpItem) error {
		err := dispatchOne(op, h)
		if _, ok := errors.AsType[*Skipped](err); ok {
			log.Skipped(err)
			return nil
		}
		return err
	})
}

// Each calls fn for an op, or for the ops of a batch one by one, until fn returns an error.
func Each(op *localv1.OpItem, log *Log, fn func(*localv1.OpItem) error) error {
	batch, ok := op.GetOp().(*localv1.OpItem_Batch)
	if !ok {
		return fn(op)
	}
	for _, op := range batch.Batch.GetOps() {
		if _, nested := op.GetOp().(*localv1.OpItem_Batch); nested {
			log.Skipped(Skip("a batch within a batch"))
			continue
		}
		if err := fn(op); err != nil {
			return err
		}
	}
	return nil
}

func dispatchOne(op *localv1.OpItem, h Handler) error {
	switch v := op.GetOp().(type) {
	case *localv1.OpItem_Set:
		if v.Set.GetRef() == nil {
			return Skip("a set op without a reference")
		}
		return h.Set(v.Set.Ref, v.Set.Bytes)
	case *localv1.OpItem_Delete:
		if v.Delete == nil {
			return Skip("a delete op without a reference")
		}
		return h.Delete(v.Delete)
	case *localv1.OpItem_Reset_:
		h.Reset()
		return nil
	case *localv1.OpItem_Sync:
		return h.Sync()
	default:
		return Skip("an op of an unknown kind (%T)", v)
	}
}

// ServicePath splits namespace/name.
func ServicePath(path string) (namespace, name string, err error) {
	namespace, name, ok := strings.Cut(path, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", Skip("service path %.100q is not namespace/name", path)
	}
	return namespace, name, nil
}

// EndpointPath splits namespace/service/key into the service's path and the key.
func EndpointPath(path string) (service, key string, err error) {
	i := strings.LastIndexByte(path, '/')
	if i > 0 && i < len(path)-1 {
		if _, _, err := ServicePath(path[:i]); err == nil {
			return path[:i], path[i+1:], nil
		}
	}
	return "", "", Skip("endpoint path %.100q is not namespace/service/key", path)
}

// UnknownSet is the error for a reference into a set that the sink does not know.
func UnknownSet(ref *localv1.Ref) error {
	return Skip("unknown set %d (path %.100q)", ref.GetSet(), ref.GetPath())
}
