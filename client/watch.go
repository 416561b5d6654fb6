// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/connectivity"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/internal/ops"
	"sigs.k8s.io/kpng/client/localsink"
)

// Next asks for the next change set and hands it to the sink, up to its Sync. It returns when that is done, however
// many attempts it takes, or when the client was canceled, or the sink has enough.
func (c *LocalClient) Next() (canceled bool) {
	return c.next() != nil
}

// next is Next with the reason for its end: the cause of the context's end, or the sink's error.
//
//  1. Without a stream, one is opened, and the sink is reset: the whole state will follow.
//  2. The sink says when it is ready, once for a change set, however often the stream breaks.
//  3. The request is sent, and ops are received up to a Sync.
//  4. Whatever fails in this, ends the stream; after a while it starts again from 1.
func (c *LocalClient) next() error {
	ctx := c.Context()
	var request *localv1.WatchReq
	for {
		err := c.attempt(ctx, &request)
		stop, stopped := errors.AsType[*stopError](err)
		switch {
		case err == nil:
			c.backoff.reset()
			c.status.set(nil)
			if c.lastErr != nil {
				klog.InfoS("In sync again", "api", c.target())
				c.lastErr = nil
			}
			return nil
		case stopped:
			c.disconnect()
			return stop.err
		case ctx.Err() != nil:
			c.disconnect()
			return context.Cause(ctx)
		}
		c.lastErr = err
		c.status.set(err)
		c.dropStream()
		delay := c.backoff.next(c.errorDelay())
		klog.ErrorS(err, "Cannot follow kpng, trying again; the last state stays", "api", c.target(), "in", delay.Round(1e6))
		sleep(ctx, delay)
	}
}

// stopError is the sink's wish to end.
type stopError struct{ err error }

func (e *stopError) Error() string { return fmt.Sprintf("the sink ended the client: %v", e.err) }

// attempt receives one change set. The request is made with the sink's answer the first time.
func (c *LocalClient) attempt(ctx context.Context, request **localv1.WatchReq) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.stream == nil {
		if err := c.openStream(ctx); err != nil {
			return err
		}
		c.Sink.Reset()
	}
	if *request == nil {
		nodeName, err := c.Sink.WaitRequest()
		if err != nil {
			return &stopError{err}
		}
		*request = &localv1.WatchReq{NodeName: nodeName, AcceptBatch: true}
		localsink.Ask(c.Sink, *request)
	}
	if err := c.stream.Send(*request); err != nil && !errors.Is(err, io.EOF) {
		return err // for EOF, Recv has the reason
	}
	for {
		op, err := c.stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the server ended the stream")
		}
		if err != nil {
			return err
		}
		if synced, err := c.deliver(op); synced || err != nil {
			return err
		}
	}
}

// deliver hands an op, or those of a batch, to the sink.
func (c *LocalClient) deliver(op *localv1.OpItem) (synced bool, err error) {
	err = ops.Each(op, &c.log, func(op *localv1.OpItem) error {
		if _, ok := op.GetOp().(*localv1.OpItem_Sync); ok {
			synced = true
		}
		err := c.Sink.Send(op)
		switch {
		case errors.Is(err, localsink.ErrStop):
			return &stopError{err}
		case err != nil:
			c.log.Failed(err)
		}
		return nil
	})
	return synced, err
}

// openStream opens a stream, on the connection of the one before when there is one.
func (c *LocalClient) openStream(ctx context.Context) error {
	if c.conn == nil {
		conn, err := c.DialContext(ctx)
		if err != nil {
			return err
		}
		c.conn = conn
		c.unwatch = context.AfterFunc(ctx, func() { _ = conn.Close() })
	}
	streamCtx, cancel := context.WithCancel(ctx)
	stream, err := localv1.NewSetsClient(c.conn).Watch(streamCtx)
	if err != nil {
		cancel()
		return err
	}
	c.stream, c.endStream = stream, cancel
	return nil
}

// dropStream gives the stream up. A connection that could not be made is given up too: the error of the next attempt
// shall be that attempt's own.
func (c *LocalClient) dropStream() {
	if c.stream != nil {
		c.endStream()
		c.stream, c.endStream = nil, nil
	}
	if c.conn != nil {
		if s := c.conn.GetState(); s != connectivity.Ready && s != connectivity.Idle {
			c.dropConn()
		}
	}
}

func (c *LocalClient) dropConn() {
	c.unwatch()
	_ = c.conn.Close()
	c.conn, c.unwatch = nil, nil
}

// disconnect gives up everything that the client holds.
func (c *LocalClient) disconnect() {
	c.dropStream()
	if c.conn != nil {
		c.dropConn()
	}
}
