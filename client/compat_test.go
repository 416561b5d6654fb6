// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"bufio"
	"context"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"crypto/tls"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	"sigs.k8s.io/kpng/client/localsink/decoder"
	"sigs.k8s.io/kpng/client/localsink/filterreset"
	"sigs.k8s.io/kpng/client/localsink/fullstate"
	"sigs.k8s.io/kpng/client/serviceevents"
	"sigs.k8s.io/kpng/client/tlsflags"
	. "sigs.k8s.io/kpng/internal/localtest"
)

// The signatures that programs written for the retired project use. They do not change: what does not compile here
// does not compile there.
var (
	// client
	_ func(client.HandleFunc, ...func(*pflag.FlagSet))                     = client.Run
	_ func(fullstate.Callback, ...func(*pflag.FlagSet))                    = client.RunCh
	_ func(...client.HandleFunc) fullstate.Callback                        = client.ArrayBackend
	_ func(client.FlagSet) *client.LocalClient                             = client.New
	_ func([]*client.ServiceEndpoints)                                     = client.HandleFunc(nil)
	_ client.HandleChFunc                                                  = fullstate.Callback(nil)
	_ client.FlagSet                                                       = tlsflags.FlagSet(nil)
	_ *client.ServiceEndpoints                                             = &fullstate.ServiceEndpoints{}
	_                                                                      = client.Runner{NodeName: ""}
	_ func(*client.Runner, client.FlagSet)                                 = (*client.Runner).BindFlags
	_ func(*client.Runner, fullstate.Callback)                             = (*client.Runner).RunBackend
	_ func(*client.Runner, localsink.Sink)                                 = (*client.Runner).RunSink
	_ func(*client.LocalClient, client.FlagSet)                            = (*client.LocalClient).DefaultFlags
	_ func(*client.LocalClient) bool                                       = (*client.LocalClient).Next
	_ func(*client.LocalClient)                                            = (*client.LocalClient).Cancel
	_ func(*client.LocalClient)                                            = (*client.LocalClient).CancelOnSignals
	_ func(*client.LocalClient, ...os.Signal)                              = (*client.LocalClient).CancelOn
	_ func(*client.LocalClient) context.Context                            = (*client.LocalClient).Context
	_ func(*client.LocalClient) (*grpc.ClientConn, error)                  = (*client.LocalClient).Dial
	_ func(*client.LocalClient, context.Context) (*grpc.ClientConn, error) = (*client.LocalClient).DialContext

	// localsink and what is below it
	_ interface {
		Setup()
		WaitRequest() (nodeName string, err error)
		Reset()
		Send(op *localv1.OpItem) error
	} = localsink.Sink(nil)
	_                                                              = localsink.Config{NodeName: ""}
	_ func(*localsink.Config, *pflag.FlagSet)                      = (*localsink.Config).BindFlags
	_ func(*localsink.Config) (string, error)                      = (*localsink.Config).WaitRequest
	_                                                              = fullstate.ServiceEndpoints{Service: (*localv1.Service)(nil), Endpoints: []*localv1.Endpoint(nil)}
	_ func(<-chan *fullstate.ServiceEndpoints)                     = fullstate.Callback(nil)
	_ func()                                                       = fullstate.Setup(nil)
	_                                                              = fullstate.Sink{Config: (*localsink.Config)(nil), Callback: fullstate.Callback(nil), SetupFunc: fullstate.Setup(nil)}
	_ func(*localsink.Config) *fullstate.Sink                      = fullstate.New
	_ func(func([]*fullstate.ServiceEndpoints)) fullstate.Callback = fullstate.ArrayCallback
	_ localsink.Sink                                               = &fullstate.Sink{}
	_ interface {
		decoder.ServicesListener
		decoder.EndpointsListener
		Sync()
		Setup()
		WaitRequest() (nodeName string, err error)
		Reset()
	} = decoder.Interface(nil)
	_ interface {
		SetService(service *localv1.Service)
		DeleteService(namespace, name string)
	} = decoder.ServicesListener(nil)
	_ interface {
		SetEndpoint(namespace, serviceName, key string, endpoint *localv1.Endpoint)
		DeleteEndpoint(namespace, serviceName, key string)
	} = decoder.EndpointsListener(nil)
	_ func(decoder.Interface) *decoder.Sink  = decoder.New
	_ localsink.Sink                         = &decoder.Sink{}
	_ func(localsink.Sink) *filterreset.Sink = filterreset.New
	_ localsink.Sink                         = &filterreset.Sink{}

	// serviceevents
	_ func() *serviceevents.ServicesListener    = serviceevents.New
	_ func(decoder.Interface) decoder.Interface = serviceevents.Wrap
	_ decoder.ServicesListener                  = serviceevents.New()
	_ interface {
		AddPort(*localv1.Service, *localv1.PortMapping)
		DeletePort(*localv1.Service, *localv1.PortMapping)
	} = serviceevents.PortsListener(nil)
	_ interface {
		AddIP(*localv1.Service, string, serviceevents.IPKind)
		DeleteIP(*localv1.Service, string, serviceevents.IPKind)
	} = serviceevents.IPsListener(nil)
	_ interface {
		AddIPPort(*localv1.Service, string, serviceevents.IPKind, *localv1.PortMapping)
		DeleteIPPort(*localv1.Service, string, serviceevents.IPKind, *localv1.PortMapping)
	} = serviceevents.IPPortsListener(nil)
	_ interface {
		EnableTrafficPolicy(*localv1.Service, serviceevents.TrafficPolicyKind)
		DisableTrafficPolicy(*localv1.Service, serviceevents.TrafficPolicyKind)
	} = serviceevents.TrafficPolicyListener(nil)
	_ interface {
		EnableSessionAffinity(*localv1.Service, serviceevents.SessionAffinity)
		DisableSessionAffinity(*localv1.Service)
	} = serviceevents.SessionAffinityListener(nil)
	_ = []serviceevents.IPKind{serviceevents.ClusterIP, serviceevents.ExternalIP, serviceevents.LoadBalancerIP}
	_ = []serviceevents.TrafficPolicyKind{serviceevents.TrafficPolicyInternal, serviceevents.TrafficPolicyExternal}
	_ = serviceevents.SessionAffinity{ClientIP: (*localv1.Service_ClientIP)(nil)}
	_ = serviceevents.ServicesListener{PortsListener: nil, IPsListener: nil, IPPortsListener: nil, TrafficPolicyListener: nil, SessionAffinityListener: nil}

	// backendcmd
	_ interface {
		BindFlags(*pflag.FlagSet)
		Sink() localsink.Sink
	} = backendcmd.Cmd(nil)
	_                                     = backendcmd.UseCmd{Use: "", New: func() backendcmd.Cmd { return nil }}
	_ func(string, func() backendcmd.Cmd) = backendcmd.Register
	_ func() []backendcmd.UseCmd          = backendcmd.Registered

	// tlsflags
	_                                                 = tlsflags.Flags{KeyFile: "", CertFile: "", CAFile: ""}
	_ func(*tlsflags.Flags, tlsflags.FlagSet, string) = (*tlsflags.Flags).Bind
	_ func(*tlsflags.Flags) *tls.Config               = (*tlsflags.Flags).Config
	_ tlsflags.FlagSet                                = (*flag.FlagSet)(nil)
	_ tlsflags.FlagSet                                = (*pflag.FlagSet)(nil)
	_ interface {
		DurationVar(varPtr *time.Duration, name string, value time.Duration, doc string)
		IntVar(varPtr *int, name string, value int, doc string)
		StringVar(varPtr *string, name, value, doc string)
		Uint64Var(varPtr *uint64, name string, value uint64, doc string)
	} = tlsflags.FlagSet(nil)

	// api/localv1
	_ func(...string) *localv1.IPSet                                        = localv1.NewIPSet
	_ func(*localv1.IPSet) bool                                             = (*localv1.IPSet).IsEmpty
	_ func(*localv1.IPSet) string                                           = (*localv1.IPSet).First
	_ func(*localv1.IPSet, string) net.IP                                   = (*localv1.IPSet).Add
	_ func(*localv1.IPSet, []string)                                        = (*localv1.IPSet).AddAll
	_ func(*localv1.IPSet, *localv1.IPSet)                                  = (*localv1.IPSet).AddSet
	_ func(*localv1.IPSet) []string                                         = (*localv1.IPSet).All
	_ func(*localv1.IPSet, *localv1.IPSet) (*localv1.IPSet, *localv1.IPSet) = (*localv1.IPSet).Diff
	_ func(*localv1.Service) string                                         = (*localv1.Service).NamespacedName
	_ func(*localv1.ServiceIPs) *localv1.IPSet                              = (*localv1.ServiceIPs).All
	_ func(*localv1.ServiceIPs) *localv1.IPSet                              = (*localv1.ServiceIPs).AllIngress
	_ func(*localv1.Endpoint, string) net.IP                                = (*localv1.Endpoint).AddAddress
	_ func(*localv1.Endpoint, *localv1.PortMapping) (int32, error)          = (*localv1.Endpoint).PortMapping
	_ func(*localv1.Endpoint, []*localv1.PortMapping) map[int32]int32       = (*localv1.Endpoint).PortMappings
	_ func(*localv1.Endpoint, []*localv1.PortMapping) map[string]int32      = (*localv1.Endpoint).PortNameMappings
	_ func(*localv1.PortMapping) []int32                                    = (*localv1.PortMapping).SrcPorts
	_ func(string) localv1.Protocol                                         = localv1.ParseProtocol
	_ interface{ Send(*localv1.OpItem) error }                              = localv1.OpSink(nil)
	_ func(*localv1.EndpointScopes) bool                                    = (*localv1.EndpointScopes).Any
)

// TestOldPrograms builds and runs programs that are written as backends for the retired project were.
func TestOldPrograms(t *testing.T) {
	server := Start(t)
	server.Update(set("ns/a", "1.0.0.1"))
	for name, want := range map[string][]string{
		"oldevents":    {"setup node1", "service ns/a", "port 80 of ns/a", "ip 10.0.0.1 (ClusterIP)", "endpoint ns a 0 1.0.0.1:8080", "sync"},
		"oldfullstate": {"prerun", "ns/a: 1.0.0.1 map[80:8080]"},
	} {
		t.Run(name, func(t *testing.T) {
			binary := filepath.Join(t.TempDir(), name)
			out, err := exec.Command("go", "build", "-o", binary, "./testdata/"+name).CombinedOutput()
			require.NoError(t, err, "%s", out)
			cmd := exec.Command(binary, "--api="+server.Target(), "--node-name=node1")
			stdout, err := cmd.StdoutPipe()
			require.NoError(t, err)
			cmd.Stderr = os.Stderr
			require.NoError(t, cmd.Start())
			defer time.AfterFunc(deadline, func() { _ = cmd.Process.Kill() }).Stop()
			lines := bufio.NewScanner(stdout)
			for _, line := range want {
				require.True(t, lines.Scan(), "want %q", line)
				require.Equal(t, line, lines.Text())
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			require.NoError(t, cmd.Wait())
		})
	}
}
