// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/server/store"
)

const (
	// maxRequestSize bounds a request: it holds no more than a node's name.
	maxRequestSize = 64 << 10
	// pingAfter and pingTimeout find out about peers that vanished without a word.
	pingAfter   = 30 * time.Second
	pingTimeout = 10 * time.Second
	// minPingInterval is how often a client may ping at most.
	minPingInterval = 5 * time.Second
	// readBuffer is the size of the read buffer of a connection. Requests are tiny.
	readBuffer = 4 << 10
	// writeBuffer is how much is written to a connection at once. Connections share these buffers (gRPC's default):
	// one that has nothing to write has none.
	writeBuffer = 32 << 10
	// window is HTTP/2's default. That it does not adapt to the connection spares a ping, and its answer, for each
	// request: gRPC would measure with them how fast requests could come.
	window = 65535
)

// Config says where and what to serve.
type Config struct {
	Listen         []string
	ListenInsecure bool
	Local, Global  bool
	MaxWatchers    int
	tls            tlsFiles
}

// BindFlags binds the flags of to-api.
func (c *Config) BindFlags(flags *pflag.FlagSet) {
	flags.StringArrayVar(&c.Listen, "listen", []string{"tcp://127.0.0.1:12090"},
		"address to serve on, tcp://HOST:PORT or unix:///PATH; may be repeated")
	flags.BoolVar(&c.ListenInsecure, "listen-insecure", false,
		"allow a TCP address that other machines can reach without TLS: anyone there can read the state")
	flags.BoolVar(&c.Local, "local-api", true, "serve localv1, what one node needs to know")
	flags.BoolVar(&c.Global, "globalv1-api", true, "serve globalv1, what another kpng needs to know")
	flags.IntVar(&c.MaxWatchers, "max-watchers", 5000, "how many streams may be open at once")
	flags.StringVar(&c.tls.key, "listen-tls-key", "", "TLS key file of the TCP listeners")
	flags.StringVar(&c.tls.cert, "listen-tls-crt", "", "TLS certificate file of the TCP listeners")
	flags.StringVar(&c.tls.ca, "listen-tls-ca", "", "CA file; with it, clients must show a certificate that it signed")
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	errs := []error{c.tls.validate()}
	if len(c.Listen) == 0 {
		errs = append(errs, errors.New("--listen: no address given"))
	}
	for _, s := range c.Listen {
		a, err := parseAddress(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if !a.private() && !c.tls.set() && !c.ListenInsecure {
			errs = append(errs, fmt.Errorf("--listen %s: other machines can reach it; "+
				"give --listen-tls-key and --listen-tls-crt (and --listen-tls-ca), or allow plain text with --listen-insecure", s))
		}
	}
	if !c.Local && !c.Global {
		errs = append(errs, errors.New("--local-api=false and --globalv1-api=false leave nothing to serve"))
	}
	if c.MaxWatchers < 1 {
		errs = append(errs, fmt.Errorf("--max-watchers %d: want at least 1", c.MaxWatchers))
	}
	return errors.Join(errs...)
}

// Server serves a store over gRPC. Make one with [New], then call Run once.
type Server struct {
	config   *Config
	watchers *watchers
	reloader *reloader // nil without TLS
	health   *health.Server
}

// New checks the configuration and reads the TLS files.
func New(config *Config, st *store.Store) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		config:   config,
		watchers: &watchers{store: st, max: config.MaxWatchers, metrics: newMetrics(), all: map[*watcher]struct{}{}},
		health:   health.NewServer(),
	}
	s.setHealth(grpc_health_v1.HealthCheckResponse_NOT_SERVING) // known from the first request on
	if config.tls.set() {
		var err error
		if s.reloader, err = newReloader(config.tls); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Collectors are the metrics of the server.
func (s *Server) Collectors() []prometheus.Collector {
	return append(s.watchers.metrics.collectors(), newWatcherCollector(s.watchers))
}

// Run listens and serves until ctx ends, then closes all streams and returns nil. It returns an error when it cannot
// listen or go on serving.
func (s *Server) Run(ctx context.Context) error {
	listeners, err := s.listen(ctx)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { s.reportHealth(ctx); return nil })
	for _, l := range listeners {
		server := s.newGRPC(l.Addr().Network() == "tcp")
		group.Go(func() error {
			klog.InfoS("Serving", "address", l.Addr().Network()+"://"+l.Addr().String(), "tls", s.reloader != nil && l.Addr().Network() == "tcp")
			return server.Serve(l)
		})
		group.Go(func() error {
			<-ctx.Done()
			server.Stop() // watches never end by themselves, so there is nothing to wait for gracefully
			return nil
		})
	}
	return group.Wait()
}

// listen opens all listeners, or none.
func (s *Server) listen(ctx context.Context) (listeners []net.Listener, err error) {
	for _, value := range s.config.Listen {
		a, err := parseAddress(value)
		if err != nil {
			return nil, err
		}
		l, err := a.listen(ctx)
		if err != nil {
			for _, open := range listeners {
				err = errors.Join(err, open.Close())
			}
			return nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, nil
}

func (s *Server) newGRPC(secure bool) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxRequestSize),
		grpc.ReadBufferSize(readBuffer),
		grpc.WriteBufferSize(writeBuffer),
		grpc.StaticStreamWindowSize(window),
		grpc.StaticConnWindowSize(window),
		grpc.ConnectionTimeout(pingTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
	}
	if secure && s.reloader != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(s.reloader.serverConfig())))
	}
	server := grpc.NewServer(options...)
	if s.config.Local {
		localv1.RegisterSetsServer(server, localService{watchers: s.watchers})
	}
	if s.config.Global {
		globalv1.RegisterSetsServer(server, globalService{watchers: s.watchers})
	}
	grpc_health_v1.RegisterHealthServer(server, s.health)
	reflection.Register(server)
	return server
}

// reportHealth tells gRPC health checks whether there is a whole state to serve.
func (s *Server) reportHealth(ctx context.Context) {
	if _, err := s.watchers.store.WaitSynced(ctx); err == nil {
		s.setHealth(grpc_health_v1.HealthCheckResponse_SERVING)
		<-ctx.Done()
	}
	s.health.Shutdown()
}

func (s *Server) setHealth(status grpc_health_v1.HealthCheckResponse_ServingStatus) {
	for _, name := range []string{"", localv1.Sets_ServiceDesc.ServiceName, globalv1.Sets_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, status)
	}
}
