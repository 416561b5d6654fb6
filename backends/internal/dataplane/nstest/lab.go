// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kpng/internal/netlab"
)

// The protocols that can be asked in, besides netlab's "tcp", "udp" and "icmp".
const (
	TCP  = "tcp"
	UDP  = "udp"
	ICMP = "icmp"
	GRE  = "gre"
	SCTP = "sctp"
)

// Ports that every pod serves TCP and UDP on. SCTP is answered on any port.
const (
	Port      = 8080
	OtherPort = 9090
)

// ServiceNets are routed to n1 by the client and by n2; to n1 itself they are outside.
var ServiceNets = []netip.Prefix{
	netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("1000::/64"),
}

// ClusterCIDRs are what is inside of the cluster: pods and nodes, not the client.
var ClusterCIDRs = []netip.Prefix{
	netip.MustParsePrefix("11.0.0.0/16"), netip.MustParsePrefix("172.31.0.0/28"),
	netip.MustParsePrefix("1100::/112"), netip.MustParsePrefix("fd31::/124"),
}

// Silence is how long a question waits before it counts as unanswered. Answers take well under a millisecond; on
// a machine that is busy otherwise a lot longer, so questions that should be answered wait for longer.
const Silence = 250 * time.Millisecond

// Lab is the network of a test: netlab's usual cluster, with everything in it serving.
type Lab struct {
	*netlab.Cluster
	hosts map[string]*netlab.Host
}

// New builds a lab for one test. n1 gets pods named n1-a, n1-b and so on; n2 has n2-a and n2-b.
func New(t testing.TB, podsOfN1 int) *Lab {
	t.Helper()
	first := netlab.NodeSpec{Name: "n1"}
	for i := range podsOfN1 {
		first.Pods = append(first.Pods, "n1-"+string(rune('a'+i)))
	}
	net := netlab.ForTest(t)
	l := &Lab{
		Cluster: net.Cluster(first, netlab.NodeSpec{Name: "n2", Pods: []string{"n2-a", "n2-b"}}),
		hosts:   map[string]*netlab.Host{},
	}
	l.hosts[l.Client.Name] = l.Client
	for _, n := range l.Nodes {
		l.hosts[n.Name] = n.Host
		for _, p := range n.Pods {
			l.hosts[p.Name] = p
		}
	}
	l.route()
	for _, h := range l.hosts {
		h.Serve(Port, OtherPort)
		serveRaw(t, h)
	}
	l.hurryNeighbours(t)
	l.warm(t)
	return l
}

// hurryNeighbours makes hosts repeat a question for a neighbour sooner than after a second. A new interface may lose what
// is sent over it before the kernel has got round to noticing that it is up.
func (l *Lab) hurryNeighbours(t testing.TB) {
	t.Helper()
	for _, h := range l.hosts {
		links, err := h.Netlink().LinkList()
		if err != nil {
			t.Fatalf("nstest: interfaces of %s: %v", h.Name, err)
		}
		for _, link := range links {
			h.Sysctl("net.ipv4.neigh."+link.Attrs().Name+".retrans_time_ms", "20")
			h.Sysctl("net.ipv6.neigh."+link.Attrs().Name+".retrans_time_ms", "20")
			h.Sysctl("net.ipv4.neigh."+link.Attrs().Name+".mcast_solicit", "20")
			h.Sysctl("net.ipv6.neigh."+link.Attrs().Name+".mcast_solicit", "20")
		}
	}
}

// warm has every host heard once by the client and by n1, so that no test meets a neighbour that is not known yet.
func (l *Lab) warm(t testing.TB) {
	t.Helper()
	var all sync.WaitGroup
	for name := range l.hosts {
		for _, v6 := range []bool{false, true} {
			for _, from := range []string{"client", "n1"} {
				all.Go(func() {
					if err := l.askAgain(t.Context(), from, netip.AddrPortFrom(l.Addr(name, v6), Port)); err != nil {
						t.Errorf("nstest: the lab does not work: %v", err)
					}
				})
			}
		}
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// askAgain asks until there is an answer: also the first datagram over a loopback interface may be lost.
func (l *Lab) askAgain(ctx context.Context, from string, to netip.AddrPort) (err error) {
	for deadline := time.Now().Add(2 * netlab.DefaultProbeTimeout); time.Now().Before(deadline); {
		try, cancel := context.WithTimeout(ctx, Silence)
		_, err = l.Ask(try, from, netlab.Probe{Network: UDP, To: to})
		cancel()
		if !Unanswered(err) {
			return err
		}
	}
	return err
}

// route makes n1 the way to the services, and the client the way out.
func (l *Lab) route() {
	n1, n2 := l.Nodes[0], l.Nodes[1]
	// What is for no service goes back to where it came from. To say so would use up what ICMP errors the kernel
	// allows itself to send to the client.
	for key, value := range map[string]string{
		"net.ipv4.conf.all.send_redirects": "0", "net.ipv4.conf.eth0.send_redirects": "0",
		"net.ipv4.icmp_ratelimit": "0", "net.ipv6.icmp.ratelimit": "0",
	} {
		n1.Sysctl(key, value)
	}
	for _, p := range ServiceNets {
		v6 := p.Addr().Is6()
		l.Client.Route(p, n1.Addr(v6), "")
		n2.Route(p, n1.Addr(v6), "")
		for _, n := range l.Nodes {
			n.DefaultRoute(l.Client.Addr(v6), "")
			for _, pods := range n.PodCIDRs {
				if pods.Addr().Is6() == v6 {
					l.Client.Route(pods, n.Addr(v6), "")
				}
			}
		}
	}
}

// Host is the host of that name: client, n1, n2, n1-a, n2-b, ...
func (l *Lab) Host(name string) *netlab.Host {
	h := l.hosts[name]
	if h == nil {
		panic(fmt.Sprintf("nstest: no host %q in the lab", name))
	}
	return h
}

// Addr is the address of a host by name.
func (l *Lab) Addr(name string, v6 bool) netip.Addr { return l.Host(name).Addr(v6) }

// MoreAddresses gives the client n more addresses of a family, to be many clients, and returns them.
func (l *Lab) MoreAddresses(t testing.TB, v6 bool, n int) []netip.Addr {
	t.Helper()
	link, err := l.Client.Netlink().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Client.Addr(v6)
	var all []netip.Addr
	for range n {
		addr = addr.Next()
		a, err := netlink.ParseAddr(netip.PrefixFrom(addr, addr.BitLen()).String())
		if err != nil {
			t.Fatal(err)
		}
		if v6 {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := l.Client.Netlink().AddrAdd(link, a); err != nil {
			t.Fatalf("address %s for the client: %v", addr, err)
		}
		all = append(all, addr)
	}
	return all
}

// Ask sends one question from a host and returns who answered. Without a deadline it waits 3 s.
func (l *Lab) Ask(ctx context.Context, from string, q netlab.Probe) (netlab.Answer, error) {
	h := l.Host(from)
	switch q.Network {
	case GRE, SCTP:
		if _, ok := ctx.Deadline(); !ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, netlab.DefaultProbeTimeout)
			defer cancel()
		}
		return askRaw(ctx, h, q)
	}
	return h.Probe(ctx, q)
}

// Refused tells whether an error is the network's word that nobody serves there (an ICMP error, a TCP reset),
// other than silence. For datagrams of the node itself it is EPERM: its kernel would not even send them.
func Refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EPERM)
}

// Unanswered tells whether an error is silence.
func Unanswered(err error) bool { return errors.Is(err, netlab.ErrNoAnswer) }
