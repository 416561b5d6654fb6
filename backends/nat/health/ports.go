// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// retry is how often a port that could not be listened on is tried again: another program may have it.
const retry = 5 * time.Second

// Ports are the health check node ports of this node. Its methods may be called from any goroutine.
type Ports struct {
	healthy func() bool
	listen  func(ctx context.Context, address string) (net.Listener, error)

	mu       sync.Mutex
	services map[string]Service // by namespace/name
	addrs    []netip.Addr       // to listen on; nil: all
	open     map[netip.AddrPort]*listener
	failed   map[netip.AddrPort]string // what was logged about those that could not be opened
	closed   bool
}

type listener struct {
	server *http.Server
	name   string // of the service
}

// NewPorts opens no port yet. healthy tells whether the node's rules are true; it is asked at each request. The ports are
// closed when ctx ends.
func NewPorts(ctx context.Context, healthy func() bool) *Ports {
	return newPorts(ctx, healthy, retry)
}

func newPorts(ctx context.Context, healthy func() bool, retry time.Duration) *Ports {
	var config net.ListenConfig
	p := &Ports{
		healthy: healthy,
		listen: func(ctx context.Context, address string) (net.Listener, error) {
			return config.Listen(ctx, "tcp", address)
		},
		services: map[string]Service{}, open: map[netip.AddrPort]*listener{}, failed: map[netip.AddrPort]string{},
	}
	go p.run(ctx, retry)
	return p
}

// run tries again what failed, until ctx ends.
func (p *Ports) run(ctx context.Context, retry time.Duration) {
	tick := time.NewTicker(retry)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.change(func() {})
		case <-ctx.Done():
			p.change(func() { p.closed = true })
			return
		}
	}
}

// Update tells of services, by namespace/name; one without a port is none.
func (p *Ports) Update(services map[string]Service) {
	p.mu.Lock()
	defer p.mu.Unlock()
	moved := false
	for name, s := range services {
		moved = moved || p.services[name].Port != s.Port
		if s.Port == 0 {
			delete(p.services, name)
		} else {
			p.services[name] = s
		}
	}
	if moved {
		p.reconcile()
	}
}

// Listen says at which addresses the ports are; nil: at all.
func (p *Ports) Listen(addrs []netip.Addr) { p.change(func() { p.addrs = addrs }) }

func (p *Ports) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.reconcile()
}

// reconcile opens what is to be open, and nothing else.
func (p *Ports) reconcile() {
	want := p.wanted()
	for at, l := range p.open {
		if want[at] != l.name {
			_ = l.server.Close()
			delete(p.open, at)
		}
	}
	for at := range p.failed {
		if want[at] == "" {
			delete(p.failed, at)
		}
	}
	for at, name := range want {
		if p.open[at] == nil {
			p.start(at, name)
		}
	}
}

// wanted names the service of each place to listen at.
func (p *Ports) wanted() map[netip.AddrPort]string {
	want := map[netip.AddrPort]string{}
	if p.closed {
		return want
	}
	addrs := p.addrs
	if addrs == nil {
		addrs = []netip.Addr{{}}
	}
	for name, s := range p.services {
		for _, ip := range addrs {
			at := netip.AddrPortFrom(ip, s.Port)
			if other := want[at]; other == "" || name < other { // the API server gives a port to one service only
				want[at] = name
			}
		}
	}
	return want
}

func (p *Ports) start(at netip.AddrPort, name string) {
	host := ""
	if at.Addr().IsValid() {
		host = at.Addr().String()
	}
	l, err := p.listen(context.Background(), net.JoinHostPort(host, strconv.Itoa(int(at.Port()))))
	if err != nil {
		if p.failed[at] != err.Error() {
			p.failed[at] = err.Error()
			klog.ErrorS(err, "The health check node port of a service is not served; trying again", "service", name, "retryIn", retry)
		}
		return
	}
	delete(p.failed, at)
	server := &http.Server{Handler: p.handler(name), ReadHeaderTimeout: 10 * time.Second}
	p.open[at] = &listener{server, name}
	go func() {
		if err := server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			klog.ErrorS(err, "The health check node port of a service ended", "service", name)
		}
	}()
}

// handler answers on any path, as load balancers ask on different ones.
func (p *Ports) handler(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		s := p.services[name]
		p.mu.Unlock()
		s.write(w, p.healthy())
	})
}
