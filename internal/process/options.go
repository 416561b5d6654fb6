// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Options are the flags that all binaries of kpng have.
type Options struct {
	LogFormat     string
	MetricsListen string
	Pprof         bool

	more map[string]http.Handler
}

// Handle adds a page to those that Start serves.
func (o *Options) Handle(pattern string, h http.Handler) {
	if o.more == nil {
		o.more = map[string]http.Handler{}
	}
	o.more[pattern] = h
}

// BindFlags binds klog's -v and --vmodule, --log-format, --metrics-listen and --pprof.
func (o *Options) BindFlags(flags *pflag.FlagSet) {
	all := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(all)
	for _, name := range []string{"v", "vmodule"} {
		if flags.Lookup(name) == nil { // the client binds -v too
			flags.AddGoFlag(all.Lookup(name))
		}
	}
	flags.StringVar(&o.LogFormat, "log-format", "text", "how to log on standard error: text or json")
	flags.StringVar(&o.MetricsListen, "metrics-listen", "",
		"HOST:PORT to serve /metrics, /healthz and /readyz on, in plain HTTP; none when empty")
	flags.BoolVar(&o.Pprof, "pprof", false, "also serve /debug/pprof on --metrics-listen")
}

// Validate reports every fault at once.
func (o *Options) Validate() error {
	var errs []error
	if o.LogFormat != "text" && o.LogFormat != "json" {
		errs = append(errs, fmt.Errorf("--log-format %q: want text or json", o.LogFormat))
	}
	if o.MetricsListen != "" {
		if _, _, err := net.SplitHostPort(o.MetricsListen); err != nil {
			errs = append(errs, fmt.Errorf("--metrics-listen %q: want HOST:PORT: %w", o.MetricsListen, err))
		}
	} else if o.Pprof {
		errs = append(errs, errors.New("--pprof needs --metrics-listen"))
	}
	return errors.Join(errs...)
}

// Start serves metrics and health until ctx ends, with --metrics-listen. ready tells why the process is not ready, or
// nil; it is called at each request to /readyz. (Logging is set up by Execute, before anything can log.)
func (o *Options) Start(ctx context.Context, ready func() error, metrics ...prometheus.Collector) error {
	if err := o.Validate(); err != nil {
		return err
	}
	if o.MetricsListen == "" {
		return nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "kpng_build_info",
			Help:        "Always 1; the labels tell what runs.",
			ConstLabels: prometheus.Labels{"version": Version()},
		}, func() float64 { return 1 }))
	registry.MustRegister(metrics...)
	mux := handler(registry, ready, o.Pprof)
	for pattern, h := range o.more {
		mux.Handle(pattern, h)
	}
	return serveHTTP(ctx, o.MetricsListen, mux)
}

func handler(registry *prometheus.Registry, ready func() error, profile bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, oneLine(err), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	if profile {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func serveHTTP(ctx context.Context, at string, h http.Handler) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return fmt.Errorf("--metrics-listen: %w", err)
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	klog.InfoS("Serving metrics", "address", "http://"+listener.Addr().String())
	go func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "Metrics are not served any more")
		}
	}()
	return nil
}
