// SPDX-License-Identifier: Apache-2.0

package json

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kpng/api/localv1"
	"sigs.k8s.io/kpng/client/backendcmd"
	"sigs.k8s.io/kpng/client/localsink"
	. "sigs.k8s.io/kpng/internal/localtest"
)

var update = flag.Bool("update", false, "write the golden files")

// writes notes each Write apart, and fails when told to.
type writes struct {
	all []string
	err error
}

func (w *writes) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.all = append(w.all, string(p))
	return len(p), nil
}

func newCmd(t *testing.T, out io.Writer, args ...string) *Cmd {
	t.Helper()
	c := &Cmd{Out: out}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c.BindFlags(flags)
	require.NoError(t, flags.Parse(args))
	return c
}

// story is what a server tells, set by set.
var story = []struct {
	name string
	ops  []*localv1.OpItem
}{
	{name: "nothing"},
	{name: "the walk-through's service", ops: []*localv1.OpItem{
		SetService(&localv1.Service{
			Namespace: "default", Name: "kpng-example", Type: "ClusterIP",
			IPs:    &localv1.ServiceIPs{ClusterIPs: &localv1.IPSet{}, ExternalIPs: localv1.NewIPSet("10.0.0.55", "1000::55"), Headless: true},
			Ports:  []*localv1.PortMapping{{Protocol: localv1.Protocol_TCP, Port: 6000, TargetPort: 6000}},
			Labels: map[string]string{"a": "<&>"},
		}),
		SetEndpoint("default/kpng-example", "1", &localv1.Endpoint{IPs: localv1.NewIPSet("1100::202"), Local: true, Scopes: &localv1.EndpointScopes{Internal: true, External: true}}),
		SetEndpoint("default/kpng-example", "2", &localv1.Endpoint{IPs: localv1.NewIPSet("11.0.2.2"), Local: true}),
	}},
	{name: "a service before it", ops: []*localv1.OpItem{SetService(Service("default/a", "10.0.0.1", 80))}},
	{name: "the same again", ops: []*localv1.OpItem{SetService(Service("default/a", "10.0.0.1", 80))}},
	{name: "session affinity", ops: []*localv1.OpItem{SetService(&localv1.Service{
		Namespace: "default", Name: "a", SessionAffinity: &localv1.Service_ClientIP{ClientIP: &localv1.ClientIPAffinity{TimeoutSeconds: 9}},
	})}},
	{name: "restart of kpng, without a", ops: []*localv1.OpItem{
		Reset(),
		SetService(&localv1.Service{Namespace: "default", Name: "kpng-example"}),
	}},
	{name: "all gone", ops: []*localv1.OpItem{Delete("default/kpng-example")}},
}

func TestGolden(t *testing.T) {
	for name, args := range map[string]string{
		"json":            "",
		"yaml":            "--output=yaml",
		"changes":         "-o changes",
		"json-service":    "--service=default/a",
		"changes-service": "-o changes --service=default/a",
		"json-none":       "--service=no/such",
	} {
		t.Run(name, func(t *testing.T) {
			out := &writes{}
			sink := newCmd(t, out, strings.Fields(args)...).Sink()
			sink.Setup()
			var text strings.Builder
			for _, step := range story {
				_, err := sink.WaitRequest()
				require.NoError(t, err)
				for _, op := range append(append([]*localv1.OpItem{}, step.ops...), Sync()) {
					require.NoError(t, sink.Send(op))
				}
				require.LessOrEqual(t, len(out.all), 1, "a state in several writes")
				text.WriteString("# " + step.name + "\n" + strings.Join(out.all, ""))
				out.all = nil
			}
			golden(t, name+".golden", text.String())
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestFlagsAreChecked(t *testing.T) {
	for args, want := range map[string][]string{
		"":                             nil,
		"--service=ns/a --output=yaml": nil,
		"--output=xml":                 {"--output=xml: want json, yaml or changes"},
		"--service=a":                  {"--service=a: want NAMESPACE/NAME"},
		"--service=/a":                 {"--service"},
		"--service=a/":                 {"--service"},
		"--service=a/b/c":              {"--service"},
		"--service=a --output=x":       {"--output=x", "--service=a"},
	} {
		c := newCmd(t, &writes{}, strings.Fields(args)...)
		err := c.Validate()
		_, waitErr := c.Sink().WaitRequest()
		require.Equal(t, err, waitErr, "a sink must not run with flags that nobody has checked")
		if want == nil {
			require.NoError(t, err)
		}
		for _, w := range want {
			require.ErrorContains(t, err, w)
		}
	}
}

func TestEndsWithItsOutput(t *testing.T) {
	full := errors.New("disk full")
	for _, tc := range []struct{ write, finish error }{
		{write: &os.PathError{Op: "write", Err: syscall.EPIPE}},
		{write: io.ErrClosedPipe},
		{write: full, finish: full},
	} {
		out := &writes{}
		c := newCmd(t, out)
		require.NoError(t, c.Finish(t.Context()))
		sink := c.Sink()
		require.NoError(t, sink.Send(SetService(Service("ns/a", "1.1.1.1", 1))))
		require.NoError(t, sink.Send(Sync()))
		out.err = tc.write
		require.NoError(t, sink.Send(Delete("ns/a")))
		require.NoError(t, sink.Send(SetService(Service("ns/b", "1.1.1.1", 1))))
		require.ErrorIs(t, sink.Send(Sync()), localsink.ErrStop)
		out.err = nil
		_, err := sink.WaitRequest()
		require.ErrorIs(t, err, localsink.ErrStop)
		require.NoError(t, sink.Send(Delete("ns/b")))
		require.ErrorIs(t, sink.Send(Sync()), localsink.ErrStop, "once ended, ended")
		require.Len(t, out.all, 1)
		require.ErrorIs(t, c.Finish(t.Context()), tc.finish)
	}
}

// Whatever the way there, what is printed is what a printer prints that is told everything at once.
func TestPrintedStateFollows(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	out := &writes{}
	sink := newCmd(t, out).Sink()
	state := map[string]*localv1.OpItem{}
	for range 300 {
		for range rnd.IntN(40) {
			path := fmt.Sprintf("ns/s%02d", rnd.IntN(60))
			op := SetService(Service(path, "1.1.1.1", rnd.Int32N(100)))
			if rnd.IntN(3) == 0 {
				op = Delete(path)
				delete(state, path)
			} else {
				state[path] = op
			}
			require.NoError(t, sink.Send(op))
		}
		out.all = nil
		require.NoError(t, sink.Send(Sync()))
		if out.all == nil {
			continue // no difference
		}
		fresh := &writes{}
		other := newCmd(t, fresh).Sink()
		for _, op := range state {
			require.NoError(t, other.Send(op))
		}
		require.NoError(t, other.Send(Sync()))
		require.Equal(t, fresh.all, out.all)
	}
}

func TestRegistered(t *testing.T) {
	registered := backendcmd.Registered()
	require.Len(t, registered, 1)
	require.Equal(t, "to-json", registered[0].Use)
	require.IsType(t, &Cmd{}, registered[0].New())
}

// The cost of a change at two sizes: of the writing with json, of nothing with changes.
func BenchmarkChange(b *testing.B) {
	for _, output := range []Output{JSON, Changes} {
		for _, services := range []int{1000, 20000} {
			b.Run(fmt.Sprint(output, services), func(b *testing.B) {
				c := &Cmd{Out: io.Discard, output: string(output)}
				sink := c.Sink()
				for i := range services {
					path := fmt.Sprintf("ns/service-%06d", i)
					_ = sink.Send(SetService(Service(path, "10.0.0.1", 80)))
					for j := range 10 {
						_ = sink.Send(SetEndpoint(path, fmt.Sprint(j), Endpoint(fmt.Sprintf("10.1.%d.%d", i%256, j))))
					}
				}
				_ = sink.Send(Sync())
				change := []*localv1.OpItem{
					SetEndpoint("ns/service-000500", "5", Endpoint("10.9.9.1")), SetEndpoint("ns/service-000500", "5", Endpoint("10.9.9.2")),
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					_ = sink.Send(change[i%2])
					_ = sink.Send(Sync())
				}
			})
		}
	}
}
