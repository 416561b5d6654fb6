// SPDX-License-Identifier: Apache-2.0

package localv1

// OpSink receives the ops of a stream, in their order. It owns an op from then on; the sender does not change it.
type OpSink interface {
	Send(op *OpItem) error
}
