// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"sigs.k8s.io/kpng/client/tlsflags"
)

const (
	// A peer that is silent for so long is pinged. Kpng allows a ping every 10 seconds. A server with gRPC's default
	// allows one in 5 minutes and closes the connection of a client that pings more often; gRPC then pings half as
	// often, on and on, until the server is content.
	pingAfter = 20 * time.Second
	// A peer that does not answer a ping for so long is dead.
	pingTimeout = 10 * time.Second
	// An attempt to connect lasts no longer.
	connectTimeout = 10 * time.Second
)

// validate reports values that cannot be meant. Zero stands for the default.
func (c *LocalClient) validate() error {
	var errs []error
	if c.ErrorDelay < 0 {
		errs = append(errs, fmt.Errorf("--error-delay %v: want 0 (for the default) or more", c.ErrorDelay))
	}
	if c.MaxMsgSize < 0 {
		errs = append(errs, fmt.Errorf("--max-msg-size %d: want 0 (for the default) or more", c.MaxMsgSize))
	}
	return errors.Join(errs...)
}

// Dial is DialContext with the client's own context.
func (c *LocalClient) Dial() (*grpc.ClientConn, error) {
	return c.DialContext(c.Context())
}

// DialContext returns a connection to the target, which the caller has to close. It is made at its first use: an error
// is about the configuration. The context is that of this call only.
func (c *LocalClient) DialContext(ctx context.Context) (*grpc.ClientConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	creds, err := newCredentials(c.TLS)
	if err != nil {
		return nil, err
	}
	backoff := grpcbackoff.DefaultConfig
	backoff.BaseDelay, backoff.MaxDelay = c.errorDelay(), max(c.errorDelay(), maxErrorDelay)
	return grpc.NewClient(c.target(),
		grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.maxMsgSize()), grpc.MaxCallSendMsgSize(c.maxMsgSize())),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff, MinConnectTimeout: connectTimeout}),
		grpc.WithDisableServiceConfig(), // no DNS queries for a configuration that does not exist
	)
}

// reloading are TLS credentials that read their files for each connection, so that a rotated CA is used too.
type reloading struct {
	credentials.TransportCredentials
	files tlsflags.Flags
}

func newCredentials(files *tlsflags.Flags) (credentials.TransportCredentials, error) {
	cfg, err := files.Load()
	if err != nil {
		return nil, err
	}
	if cfg == nil {
		return insecure.NewCredentials(), nil
	}
	return &reloading{credentials.NewTLS(cfg), *files}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *reloading) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := r.files.Load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (r *reloading) Clone() credentials.TransportCredentials {
	return &reloading{r.TransportCredentials.Clone(), r.files}
}
