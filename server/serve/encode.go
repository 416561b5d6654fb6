// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"google.golang.org/protobuf/encoding/protowire"

	"sigs.k8s.io/kpng/api/localv1"
)

// Field numbers of OpItem, Value, Ref and OpBatch, see api/localv1/api.proto.
const (
	opSync   = 1
	opSet    = 2
	opDelete = 3
	opReset  = 4
	opBatch  = 5

	opTriggeredAt = 6

	valueRef   = 1
	valueBytes = 2

	refSet  = 1
	refPath = 2

	batchOps = 1
)

// tagSize is the size of any tag here: field numbers below 16 take one byte.
const tagSize = 1

func fieldSize(n int) int { return tagSize + protowire.SizeBytes(n) }

func refSize(set localv1.Set, p path) int {
	return tagSize + protowire.SizeVarint(uint64(set)) + fieldSize(p.len())
}

func appendRef(b []byte, set localv1.Set, p path) []byte {
	b = protowire.AppendTag(b, refSet, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(set))
	b = appendHeader(b, refPath, p.len())
	return p.append(b)
}

// appendHeader appends the tag and length of a length-delimited field.
func appendHeader(b []byte, field protowire.Number, size int) []byte {
	if size < 1<<7 { // as most are
		return append(b, byte(field)<<3|byte(protowire.BytesType), byte(size))
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(size))
}

// setOp is an OpItem.Set about to be encoded.
type setOp struct {
	set           localv1.Set
	path          path
	value, suffix string

	ref, inner int // sizes of Ref and Value
}

func newSetOp(set localv1.Set, p path, value, suffix string) setOp {
	op := setOp{set: set, path: p, value: value, suffix: suffix, ref: refSize(set, p)}
	op.inner = fieldSize(op.ref) + fieldSize(len(value)+len(suffix))
	return op
}

func (op setOp) size() int { return fieldSize(op.inner) }

func (op setOp) append(b []byte) []byte {
	b = appendHeader(b, opSet, op.inner)
	b = appendHeader(b, valueRef, op.ref)
	b = appendRef(b, op.set, op.path)
	b = appendHeader(b, valueBytes, len(op.value)+len(op.suffix))
	b = append(b, op.value...)
	return append(b, op.suffix...)
}

// deleteOp is an OpItem.Delete about to be encoded.
type deleteOp struct {
	set  localv1.Set
	path path
}

func (op deleteOp) size() int { return fieldSize(refSize(op.set, op.path)) }

func (op deleteOp) append(b []byte) []byte {
	b = appendHeader(b, opDelete, refSize(op.set, op.path))
	return appendRef(b, op.set, op.path)
}

// emptyOp is an OpItem.Sync or OpItem.Reset about to be encoded.
type emptyOp protowire.Number

func (op emptyOp) size() int { return fieldSize(0) }

func (op emptyOp) append(b []byte) []byte { return appendHeader(b, protowire.Number(op), 0) }

// triggeredOp is an op with its OpItem.TriggeredAt.
type triggeredOp[Op encodable] struct {
	op Op
	at int64
}

func (op triggeredOp[Op]) size() int {
	return op.op.size() + tagSize + protowire.SizeVarint(uint64(op.at))
}

func (op triggeredOp[Op]) append(b []byte) []byte {
	b = protowire.AppendTag(op.op.append(b), opTriggeredAt, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(op.at))
}

// encodable is any op about to be encoded as an OpItem.
type encodable interface {
	size() int
	append([]byte) []byte
}
