// SPDX-License-Identifier: Apache-2.0

package serviceevents_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/decoder"
	"sigs.k8s.io/kpng/client/localsink/filterreset"
	. "sigs.k8s.io/kpng/client/serviceevents"
	"sigs.k8s.io/kpng/internal/localtest"
)

// recorder implements every listener, and decoder.Interface.
type recorder struct {
	localsink.Config
	t     *testing.T
	calls []string
}

func (r *recorder) note(svc *localv1.Service, format string, args ...any) {
	require.NotNil(r.t, svc, "a listener was given no service")
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

func (r *recorder) take() []string {
	defer func() { r.calls = nil }()
	return r.calls
}

func port(p *localv1.PortMapping) string {
	return fmt.Sprintf("%d/%v>%d", p.Port, p.Protocol, p.TargetPort)
}

func (r *recorder) AddPort(s *localv1.Service, p *localv1.PortMapping) {
	r.note(s, "AddPort %s", port(p))
}
func (r *recorder) DeletePort(s *localv1.Service, p *localv1.PortMapping) {
	r.note(s, "DeletePort %s", port(p))
}
func (r *recorder) AddIP(s *localv1.Service, ip string, k IPKind) { r.note(s, "AddIP %s %v", ip, k) }
func (r *recorder) DeleteIP(s *localv1.Service, ip string, k IPKind) {
	r.note(s, "DeleteIP %s %v", ip, k)
}

func (r *recorder) AddIPPort(s *localv1.Service, ip string, k IPKind, p *localv1.PortMapping) {
	r.note(s, "AddIPPort %s %v %s", ip, k, port(p))
}

func (r *recorder) DeleteIPPort(s *localv1.Service, ip string, k IPKind, p *localv1.PortMapping) {
	r.note(s, "DeleteIPPort %s %v %s", ip, k, port(p))
}
func (r *recorder) EnableTrafficPolicy(s *localv1.Service, k TrafficPolicyKind) {
	r.note(s, "Enable %v", k)
}
func (r *recorder) DisableTrafficPolicy(s *localv1.Service, k TrafficPolicyKind) {
	r.note(s, "Disable %v", k)
}

func (r *recorder) EnableSessionAffinity(s *localv1.Service, a SessionAffinity) {
	r.note(s, "EnableAffinity %d", a.ClientIP.ClientIP.TimeoutSeconds)
}
func (r *recorder) DisableSessionAffinity(s *localv1.Service) { r.note(s, "DisableAffinity") }

func (r *recorder) Ask(req *localv1.WatchReq)     { req.AllEndpoints = true }
func (r *recorder) Setup()                        {}
func (r *recorder) Reset()                        {}
func (r *recorder) Sync()                         {}
func (r *recorder) SetService(s *localv1.Service) { r.note(s, "SetService") }
func (r *recorder) DeleteService(_, _ string)     { r.note(&localv1.Service{}, "DeleteService") }
func (r *recorder) SetEndpoint(_, _, _ string, _ *localv1.Endpoint) {
	r.note(&localv1.Service{}, "SetEndpoint")
}
func (r *recorder) DeleteEndpoint(_, _, _ string) { r.note(&localv1.Service{}, "DeleteEndpoint") }

func all(r *recorder) *ServicesListener {
	l := New()
	l.PortsListener, l.IPsListener, l.IPPortsListener, l.TrafficPolicyListener, l.SessionAffinityListener = r, r, r, r, r
	return l
}

func tcp(port, target int32) *localv1.PortMapping {
	return &localv1.PortMapping{Protocol: localv1.Protocol_TCP, Port: port, TargetPort: target}
}

func affinity(seconds int32) *localv1.Service_ClientIP {
	return &localv1.Service_ClientIP{ClientIP: &localv1.ClientIPAffinity{TimeoutSeconds: seconds}}
}

func TestEvents(t *testing.T) {
	r := &recorder{t: t}
	l := all(r)
	for _, step := range []struct {
		name string
		svc  *localv1.Service // nil: delete
		want []string
	}{
		{
			name: "new",
			svc: &localv1.Service{
				IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet("1::1", "10.0.0.1")},
				Ports: []*localv1.PortMapping{tcp(80, 8080), nil, tcp(80, 1)},
			},
			want: []string{
				"AddPort 80/TCP>8080", "AddIP 10.0.0.1 ClusterIP", "AddIP 1::1 ClusterIP",
				"AddIPPort 10.0.0.1 ClusterIP 80/TCP>8080", "AddIPPort 1::1 ClusterIP 80/TCP>8080",
			},
		},
		{
			name: "same",
			svc: &localv1.Service{
				IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet("1::1", "10.0.0.1")},
				Ports: []*localv1.PortMapping{tcp(80, 8080)},
			},
		},
		{
			name: "a port replaced, an address replaced, another kind",
			svc: &localv1.Service{
				IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet("10.0.0.1"), ExternalIPs: localv1.NewIPSet("1.2.3.4"), LoadBalancerIPs: localv1.NewIPSet("1::1")},
				Ports: []*localv1.PortMapping{tcp(81, 8080)},
			},
			want: []string{
				"DeletePort 80/TCP>8080", "AddPort 81/TCP>8080", "AddIP 1.2.3.4 ExternalIP", "AddIP 1::1 LoadBalancerIP",
				"DeleteIPPort 10.0.0.1 ClusterIP 80/TCP>8080", "DeleteIPPort 1::1 ClusterIP 80/TCP>8080",
				"AddIPPort 10.0.0.1 ClusterIP 81/TCP>8080", "AddIPPort 1.2.3.4 ExternalIP 81/TCP>8080", "AddIPPort 1::1 LoadBalancerIP 81/TCP>8080",
				"DeleteIP 1::1 ClusterIP",
			},
		},
		{
			name: "another target port",
			svc: &localv1.Service{
				IPs:   &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet("10.0.0.1")},
				Ports: []*localv1.PortMapping{tcp(81, 9090)},
			},
			want: []string{
				"DeletePort 81/TCP>8080", "AddPort 81/TCP>9090",
				"DeleteIPPort 10.0.0.1 ClusterIP 81/TCP>8080", "AddIPPort 10.0.0.1 ClusterIP 81/TCP>9090",
				"DeleteIPPort 1.2.3.4 ExternalIP 81/TCP>8080", "DeleteIPPort 1::1 LoadBalancerIP 81/TCP>8080",
				"DeleteIP 1.2.3.4 ExternalIP", "DeleteIP 1::1 LoadBalancerIP",
			},
		},
		{
			name: "policies and affinity",
			svc:  &localv1.Service{InternalTrafficToLocal: true, ExternalTrafficToLocal: true, SessionAffinity: affinity(10)},
			want: []string{
				"DeletePort 81/TCP>9090", "DeleteIPPort 10.0.0.1 ClusterIP 81/TCP>9090",
				"Enable TrafficPolicyInternal", "Enable TrafficPolicyExternal", "EnableAffinity 10", "DeleteIP 10.0.0.1 ClusterIP",
			},
		},
		{
			name: "another timeout, one policy off",
			svc:  &localv1.Service{ExternalTrafficToLocal: true, SessionAffinity: affinity(20)},
			want: []string{"Disable TrafficPolicyInternal", "EnableAffinity 20"},
		},
		{name: "deleted", want: []string{"Disable TrafficPolicyExternal", "DisableAffinity"}},
		{name: "deleted again"},
		{name: "affinity without a timeout", svc: &localv1.Service{SessionAffinity: &localv1.Service_ClientIP{ClientIP: &localv1.ClientIPAffinity{}}}, want: []string{"EnableAffinity 0"}},
		{name: "off", svc: &localv1.Service{}, want: []string{"DisableAffinity"}},
	} {
		if step.svc == nil {
			l.DeleteService("ns", "a")
		} else {
			step.svc.Namespace, step.svc.Name = "ns", "a"
			l.SetService(step.svc)
		}
		require.Equal(t, step.want, r.take(), step.name)
	}
}

// A listener that keeps what it is told has the service as it is, after any update, and nothing after its deletion.
func TestEventsAddUp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	b := &book{t: t, ports: map[string]int32{}, ips: map[string]bool{}, ipPorts: map[string]int32{}}
	l := &ServicesListener{PortsListener: b, IPsListener: b, IPPortsListener: b}
	for range 2000 {
		svc := &localv1.Service{Namespace: "ns", Name: "a", IPs: &localv1.ServiceIPs{ClusterIPs: randomIPs(rnd), ExternalIPs: randomIPs(rnd)}}
		ports, ips, ipPorts := map[string]int32{}, map[string]bool{}, map[string]int32{}
		for p := range int32(4) {
			if rnd.IntN(2) == 0 {
				svc.Ports = append(svc.Ports, tcp(p, rnd.Int32N(3)))
			}
		}
		if rnd.IntN(10) == 0 {
			l.DeleteService("ns", "a")
			svc = &localv1.Service{}
		} else {
			l.SetService(svc)
		}
		for _, p := range svc.GetPorts() {
			ports[fmt.Sprint(p.Port)] = p.TargetPort
		}
		for kind, set := range map[IPKind]*localv1.IPSet{ClusterIP: svc.GetIPs().GetClusterIPs(), ExternalIP: svc.GetIPs().GetExternalIPs()} {
			for _, ip := range set.All() {
				ips[fmt.Sprint(kind, ip)] = true
				for _, p := range svc.Ports {
					ipPorts[fmt.Sprint(kind, ip, p.Port)] = p.TargetPort
				}
			}
		}
		require.Equal(t, ports, b.ports)
		require.Equal(t, ips, b.ips)
		require.Equal(t, ipPorts, b.ipPorts)
	}
}

func randomIPs(rnd *rand.Rand) *localv1.IPSet {
	set := localv1.NewIPSet()
	for range rnd.IntN(4) {
		set.Add(fmt.Sprintf("10.0.0.%d", rnd.IntN(4)))
	}
	return set
}

// book keeps what it is told, and refuses what a kernel would: a port of an address that is not there, an address
// that is there already.
type book struct {
	t       *testing.T
	ports   map[string]int32
	ips     map[string]bool
	ipPorts map[string]int32
}

func (b *book) AddPort(_ *localv1.Service, p *localv1.PortMapping) {
	require.NotContains(b.t, b.ports, fmt.Sprint(p.Port))
	b.ports[fmt.Sprint(p.Port)] = p.TargetPort
}

func (b *book) DeletePort(_ *localv1.Service, p *localv1.PortMapping) {
	require.Equal(b.t, b.ports[fmt.Sprint(p.Port)], p.TargetPort)
	delete(b.ports, fmt.Sprint(p.Port))
}

func (b *book) AddIP(_ *localv1.Service, ip string, kind IPKind) {
	require.NotContains(b.t, b.ips, fmt.Sprint(kind, ip))
	b.ips[fmt.Sprint(kind, ip)] = true
}

func (b *book) DeleteIP(_ *localv1.Service, ip string, kind IPKind) {
	require.Contains(b.t, b.ips, fmt.Sprint(kind, ip))
	delete(b.ips, fmt.Sprint(kind, ip))
}

func (b *book) AddIPPort(_ *localv1.Service, ip string, kind IPKind, p *localv1.PortMapping) {
	require.Contains(b.t, b.ips, fmt.Sprint(kind, ip))
	require.NotContains(b.t, b.ipPorts, fmt.Sprint(kind, ip, p.Port))
	b.ipPorts[fmt.Sprint(kind, ip, p.Port)] = p.TargetPort
}

func (b *book) DeleteIPPort(_ *localv1.Service, ip string, kind IPKind, p *localv1.PortMapping) {
	require.Contains(b.t, b.ips, fmt.Sprint(kind, ip))
	require.Equal(b.t, b.ipPorts[fmt.Sprint(kind, ip, p.Port)], p.TargetPort)
	delete(b.ipPorts, fmt.Sprint(kind, ip, p.Port))
}

// forgetful is a listener such as the retired project's example of a proxy: it keeps one thing for each port of a
// service, whatever the address.
type forgetful map[string]string

func (f forgetful) AddIPPort(_ *localv1.Service, ip string, _ IPKind, p *localv1.PortMapping) {
	f[fmt.Sprint(p.Port)] = ip
}

func (f forgetful) DeleteIPPort(_ *localv1.Service, _ string, _ IPKind, p *localv1.PortMapping) {
	delete(f, fmt.Sprint(p.Port))
}

func TestPortsGoBeforeOthersCome(t *testing.T) {
	f := forgetful{}
	l := &ServicesListener{IPPortsListener: f}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.1"} {
		svc := &localv1.Service{Namespace: "ns", Name: "a", IPs: &localv1.ServiceIPs{ClusterIPs: localv1.NewIPSet(ip)}, Ports: []*localv1.PortMapping{tcp(80, 8080)}}
		l.SetService(svc)
		require.Equal(t, forgetful{"80": ip}, f)
	}
}

func TestNobodyListens(t *testing.T) {
	l := New()
	l.SetService(&localv1.Service{Namespace: "ns", Name: "a", Ports: []*localv1.PortMapping{tcp(1, 1)}})
	l.DeleteService("ns", "a")
	require.Nil(t, GetSessionAffinity(nil).ClientIP)
	require.Equal(t, "IPKind(9)", IPKind(9).String())
	require.Equal(t, "TrafficPolicyKind(9)", TrafficPolicyKind(9).String())
}

func TestWrap(t *testing.T) {
	r := &recorder{t: t}
	sink := filterreset.New(decoder.New(Wrap(r)))
	svc := localtest.Service("ns/a", "10.0.0.1", 80)
	svc.ExternalTrafficToLocal, svc.SessionAffinity = true, affinity(5)
	send := func(ops ...*localv1.OpItem) {
		for _, op := range ops {
			require.NoError(t, sink.Send(op))
		}
	}
	send(localtest.Reset(), localtest.SetService(svc), localtest.SetEndpoint("ns/a", "1", localtest.Endpoint("1.1.1.1")), localtest.Sync())
	require.Equal(t, []string{
		"SetService", "AddPort 80/TCP>8080", "AddIP 10.0.0.1 ClusterIP", "AddIPPort 10.0.0.1 ClusterIP 80/TCP>8080",
		"Enable TrafficPolicyExternal", "EnableAffinity 5", "SetEndpoint",
	}, r.take())
	send(localtest.Reset(), localtest.Sync())
	require.Equal(t, []string{
		"DeleteEndpoint", "DeletePort 80/TCP>8080", "DeleteIPPort 10.0.0.1 ClusterIP 80/TCP>8080",
		"Disable TrafficPolicyExternal", "DisableAffinity", "DeleteIP 10.0.0.1 ClusterIP", "DeleteService",
	}, r.take())

	req := &localv1.WatchReq{}
	localsink.Ask(sink, req)
	require.True(t, req.AllEndpoints, "what the backend asks for gets through")

	plain := Wrap(struct{ decoder.Interface }{r}) // a backend that listens to nothing
	plain.SetService(svc)
	require.Equal(t, []string{"SetService"}, r.take())
}
