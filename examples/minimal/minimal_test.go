// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/internal/localtest"
)

// TestMinimal builds the example and runs it against a server, as its README does.
func TestMinimal(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "minimal")
	out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	server := localtest.Start(t)
	server.Update(func(s localtest.State) {
		s.SetService(&localv1.Service{
			Namespace: "default", Name: "kpng-example", Type: "ClusterIP",
			IPs:   &localv1.ServiceIPs{ClusterIPs: &localv1.IPSet{}, ExternalIPs: localv1.NewIPSet("10.0.0.55", "1000::55"), Headless: true},
			Ports: []*localv1.PortMapping{{Protocol: localv1.Protocol_TCP, Port: 6000, TargetPort: 6000}},
		})
		s.SetEndpoint("default/kpng-example", "a", &localv1.Endpoint{IPs: localv1.NewIPSet("1100::202"), Local: true})
	})
	const first = `{"Service":{"Namespace":"default","Name":"kpng-example","Type":"ClusterIP",` +
		`"IPs":{"ClusterIPs":{},"ExternalIPs":{"V4":["10.0.0.55"],"V6":["1000::55"]},"Headless":true},` +
		`"Ports":[{"Protocol":1,"Port":6000,"TargetPort":6000}],"SessionAffinity":null},` +
		`"Endpoints":[{"IPs":{"V6":["1100::202"]},"Local":true}]}`

	stdout, err := exec.CommandContext(ctx, binary, "--once", "--node-name=worker-1", "--api", server.Target()).Output()
	require.NoError(t, err)
	require.Equal(t, first+"\n", string(stdout))
	require.Equal(t, "worker-1", server.Requests()[0].NodeName)

	cmd := exec.CommandContext(ctx, binary, "--api", server.Target(), "--error-delay=10ms")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(pipe)
	require.True(t, lines.Scan())
	require.Equal(t, first, lines.Text())
	server.Stop()
	server.Listen()
	server.Update(func(s localtest.State) {
		s.Delete("default/kpng-example")
		s.SetService(&localv1.Service{Namespace: "default", Name: "b"})
	})
	require.True(t, lines.Scan())
	require.Equal(t, `{"Service":{"Namespace":"default","Name":"b","SessionAffinity":null},"Endpoints":null}`, lines.Text())
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}
