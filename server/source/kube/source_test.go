// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/server/source/kube/translate"
	"sigs.k8s.io/kpng/server/store"
)

func TestMain(m *testing.M) {
	os.Unsetenv("KUBECONFIG")
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { os.Exit(code) }),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const deadline = 30 * time.Second

// running is a source under test.
type running struct {
	*Source
	t     *testing.T
	st    *store.Store
	ended chan error
}

func newConfig(api *fakeAPI, proxy string) *Config {
	config := &Config{}
	config.BindFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	config.Server, config.ServiceProxyName = api.url(), proxy
	return config
}

func run(t *testing.T, config *Config) *running {
	t.Helper()
	source, err := New(config)
	require.NoError(t, err)
	r := &running{Source: source, t: t, st: store.New(), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.ended <- source.Run(ctx, r.st) }()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(deadline):
			t.Error("Run does not end with its context")
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return r
}

func synced(t *testing.T, config *Config) *running {
	t.Helper()
	r := run(t, config)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	_, err := r.st.WaitSynced(ctx)
	require.NoError(t, err)
	return r
}

// state writes the store down: "namespace/name endpoints…" for each service, slices alone in brackets, nodes.
func (r *running) state() string {
	var lines []string
	for svc := range r.st.Snapshot().Services() {
		line := svc.Key()
		if !svc.Exists() {
			line = "(" + line + ")"
		}
		for _, ep := range svc.Endpoints() {
			line += " " + strings.Split(ep.Key(), "-")[0]
		}
		lines = append(lines, line)
	}
	for node := range r.st.Snapshot().Nodes() {
		lines = append(lines, "node "+node.Name())
	}
	return strings.Join(lines, "; ")
}

func (r *running) requireState(want string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.state() == want }, deadline, 2*time.Millisecond, "want %q", want)
}

// value reads a counter or a gauge.
func value(t *testing.T, metric prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	require.NoError(t, metric.Write(&out))
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// service has a selector, and the label with a value unless that is empty.
func service(name, proxy string) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.1", Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	if proxy != "" {
		svc.Labels = map[string]string{translate.LabelServiceProxyName: proxy}
	}
	return svc
}

func without(svc *corev1.Service, change func(*corev1.Service)) *corev1.Service {
	svc = svc.DeepCopy()
	change(svc)
	return svc
}

func noSelector(svc *corev1.Service) { svc.Spec.Selector = nil }

func slice(name, svc, proxy string, addresses ...string) *discoveryv1.EndpointSlice {
	es := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: svc}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if proxy != "" {
		es.Labels[translate.LabelServiceProxyName] = proxy
	}
	for _, address := range addresses {
		es.Endpoints = append(es.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	}
	return es
}

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

// Both ways of listing: streaming, and what API servers before it know.
func bothProtocols(t *testing.T, test func(t *testing.T, api *fakeAPI)) {
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("streaming=%v", streaming), func(t *testing.T) {
			api := newFakeAPI(t)
			api.streaming = streaming
			test(t, api)
		})
	}
}

func TestFollows(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		api.put(service("a", ""), service("other", "x"), slice("a-1", "a", "", "10.0.0.1"), slice("other-1", "other", "x", "10.0.0.9"), node("n1"))
		r := synced(t, newConfig(api, ""))
		require.Equal(t, "ns/a 10.0.0.1; node n1", r.state(), "the first commit holds everything")
		require.EqualValues(t, 1, r.st.Snapshot().Revision())
		require.NoError(t, r.Ready())

		api.put(slice("a-1", "a", "", "10.0.0.1", "10.0.0.2"))
		r.requireState("ns/a 10.0.0.1 10.0.0.2; node n1")
		api.put(slice("later-1", "later", "", "10.0.0.3"))
		r.requireState("ns/a 10.0.0.1 10.0.0.2; (ns/later) 10.0.0.3; node n1")
		api.put(service("later", ""))
		r.requireState("ns/a 10.0.0.1 10.0.0.2; ns/later 10.0.0.3; node n1")
		api.put(slice("a-1", "later", "", "10.0.0.1"))
		r.requireState("ns/a; ns/later 10.0.0.1 10.0.0.3; node n1")
		api.remove(service("later", ""), slice("a-1", "", ""), slice("later-1", "", ""), node("n1"))
		r.requireState("ns/a")
	})
}

// TestHeadlessLabel: a slice that gets the label counts no more for a service that is not headless.
func TestHeadlessLabel(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		api.put(service("a", ""), slice("a-1", "a", "", "10.1.0.1"))
		r := synced(t, newConfig(api, ""))
		require.Len(t, r.st.Snapshot().Service("ns/a").Endpoints(), 1)
		labelled := slice("a-1", "a", "", "10.1.0.1")
		labelled.Labels[corev1.IsHeadlessService] = ""
		api.put(labelled)
		require.Eventually(t, func() bool { return len(r.st.Snapshot().Service("ns/a").Endpoints()) == 0 }, deadline, time.Millisecond)
	})
}

func TestEmptyIsSynced(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		for _, proxy := range []string{"", "x"} {
			r := synced(t, newConfig(api, proxy))
			require.Empty(t, r.state())
			require.NoError(t, r.Ready())
		}
	})
}

func TestAsksOnlyForWhatItServes(t *testing.T) {
	api := newFakeAPI(t)
	byHand := without(service("byhand", "x"), noSelector)
	api.put(service("a", "x"), service("other", ""), byHand)
	synced(t, newConfig(api, "x"))
	seen := api.seen()
	slices.Sort(seen)
	require.Equal(t, []string{
		"watch /api/v1/nodes",
		"watch /api/v1/services service.kubernetes.io/service-proxy-name=x",
		"watch /apis/discovery.k8s.io/v1/endpointslices service.kubernetes.io/service-proxy-name=x",
		"watch /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices " +
			"kubernetes.io/service-name=byhand,service.kubernetes.io/service-proxy-name!=x",
	}, seen)
}

func TestSlicesOfServicesWithoutSelector(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		withSelector := service("s", "x")
		byHand := without(withSelector, noSelector)
		api.put(slice("s-hand", "s", "", "10.0.0.1"), slice("s-auto", "s", "x", "10.0.0.2"), byHand)
		r := synced(t, newConfig(api, "x"))
		require.Equal(t, "ns/s 10.0.0.1 10.0.0.2", r.state(), "the first commit has the hand-written slices too")

		api.put(withSelector.DeepCopy())
		r.requireState("ns/s 10.0.0.2")
		api.put(byHand.DeepCopy())
		r.requireState("ns/s 10.0.0.1 10.0.0.2")

		t.Log("loses its label, and gets it again")
		api.put(without(byHand, func(svc *corev1.Service) { svc.Labels = nil }))
		r.requireState("(ns/s) 10.0.0.2")
		api.put(slice("s-hand", "s", "", "10.0.0.3"))
		api.put(byHand.DeepCopy())
		r.requireState("ns/s 10.0.0.2 10.0.0.3")

		t.Log("a slice changes hands, from feed to feed")
		for _, proxy := range []string{"x", "", "x", ""} {
			api.put(slice("s-hand", "s", proxy, "10.0.0.3"))
		}
		r.requireState("ns/s 10.0.0.2 10.0.0.3")

		api.remove(byHand)
		r.requireState("(ns/s) 10.0.0.2")
		require.Zero(t, value(t, r.session.metrics.feeds))
	})
}

// watchFor counts the revisions at which something holds. As a revision may be missed, it may count too few.
func watchFor(t *testing.T, r *running, holds func() bool) func() int {
	t.Helper()
	stop, counted := make(chan struct{}), make(chan int)
	go func() {
		count := 0
		for {
			_, outdated := r.st.Watch()
			if holds() {
				count++
			}
			select {
			case <-outdated:
			case <-stop:
				counted <- count
				return
			}
		}
	}()
	return func() int { close(stop); return <-counted }
}

func TestWhatChangesNothingCommitsNothing(t *testing.T) {
	api := newFakeAPI(t)
	svc, es, n := service("a", ""), slice("a-1", "a", "", "10.0.0.1"), node("n1")
	api.put(svc, es, n)
	r := synced(t, newConfig(api, ""))
	revision := r.st.Snapshot().Revision()

	for i := range 3 {
		mark := map[string]string{
			"irrelevant":                          fmt.Sprint(i),
			corev1.EndpointsLastChangeTriggerTime: text(time.Now()),
		}
		api.put(without(svc, func(svc *corev1.Service) { svc.Annotations = mark }))
		es = es.DeepCopy()
		es.Annotations = mark
		n = n.DeepCopy()
		n.Annotations = mark
		api.put(es, n)
	}
	api.forgetHistory() // and a relist of the same
	require.Eventually(t, func() bool {
		return value(t, r.session.metrics.events.WithLabelValues("endpointslices", "list")) >= 2
	}, deadline, time.Millisecond)
	api.put(service("b", ""))
	r.requireState("ns/a 10.0.0.1; ns/b; node n1")
	require.Equal(t, revision+1, r.st.Snapshot().Revision())
}

func TestChangesTogetherAreOneCommit(t *testing.T) {
	api := newFakeAPI(t)
	config := newConfig(api, "")
	config.CommitDelay, config.CommitMaxDelay = 300*time.Millisecond, deadline
	r := synced(t, config)
	revision := r.st.Snapshot().Revision()
	for i := range 10 {
		api.put(service(fmt.Sprintf("s%d", i), ""), slice(fmt.Sprintf("s%d-1", i), fmt.Sprintf("s%d", i), "", "10.0.0.1"))
	}
	require.Eventually(t, func() bool { return r.st.Snapshot().Size().Services == 10 }, deadline, time.Millisecond)
	require.Equal(t, revision+1, r.st.Snapshot().Revision())
	require.Equal(t, 10, r.st.Snapshot().Size().Endpoints)
}

func TestMaximumDelayIsKept(t *testing.T) {
	api := newFakeAPI(t)
	config := newConfig(api, "")
	config.CommitDelay, config.CommitMaxDelay = 100*time.Millisecond, 200*time.Millisecond
	r := synced(t, config)
	stop := time.After(deadline)
	for i := 0; r.st.Snapshot().Size().Services == 0; i++ { // never quiet for 100 ms
		api.put(service(fmt.Sprintf("s%d", i), ""))
		select {
		case <-time.After(time.Millisecond):
		case <-stop:
			t.Fatal("no commit while changes keep arriving")
		}
	}
}

func TestRelistIsADifference(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		api.put(service("a", ""), service("b", ""), slice("a-1", "a", "", "10.0.0.1"), slice("b-1", "b", "", "10.0.0.2"))
		r := synced(t, newConfig(api, ""))
		lost := watchFor(t, r, func() bool { return !strings.Contains(r.state(), "ns/a 10.0.0.1") })
		api.locked(func() { // what happens while nobody watches
			delete(api.objects, "services/ns/b")
			delete(api.objects, "endpointslices/ns/b-1")
			c := service("c", "")
			c.ResourceVersion = "1"
			api.objects["services/ns/c"] = c
			api.version += 10
			api.forgotten = api.version
		})
		r.requireState("ns/a 10.0.0.1; ns/c")
		require.Zero(t, lost(), "what stays is never dropped")
		require.NoError(t, r.Ready())
	})
}

func TestServerAwayAndBack(t *testing.T) {
	bothProtocols(t, func(t *testing.T, api *fakeAPI) {
		api.put(service("a", "x"), without(service("b", "x"), noSelector), slice("b-1", "b", "", "10.0.0.1"))
		r := synced(t, newConfig(api, "x"))
		before := r.state()
		require.Equal(t, "ns/a; ns/b 10.0.0.1", before)

		api.stop()
		require.Eventually(t, func() bool { return r.Ready() != nil }, deadline, time.Millisecond)
		require.ErrorContains(t, r.Ready(), "stale: ")
		require.ErrorContains(t, r.Ready(), "connection refused since ")
		require.Eventually(t, func() bool {
			return value(t, r.session.metrics.stale.WithLabelValues("services")) == 1
		}, deadline, time.Millisecond)
		require.Equal(t, before, r.state())

		api.put(service("c", "x"), slice("b-1", "b", "", "10.0.0.2"))
		api.start()
		r.requireState("ns/a; ns/b 10.0.0.2; ns/c")
		require.Eventually(t, func() bool { return r.Ready() == nil }, deadline, time.Millisecond)
		require.Zero(t, value(t, r.session.metrics.stale.WithLabelValues("services")))
		require.Empty(t, r.ended, "it never ended")
	})
}

func TestWatchesThatEndAreRenewed(t *testing.T) {
	api := newFakeAPI(t)
	r := synced(t, newConfig(api, ""))
	for i := range 3 {
		api.closeWatches()
		api.put(service(fmt.Sprintf("s%d", i), ""))
		require.Eventually(t, func() bool { return r.st.Snapshot().Size().Services == i+1 }, deadline, time.Millisecond)
	}
}

func TestRefusedAtStart(t *testing.T) {
	for _, tc := range []struct{ refused, want string }{
		{"services/watch", `watch services: forbidden for "system:serviceaccount:x:y": grant list and watch (see deploy/rbac)`},
		{"endpointslices/watch", `watch endpointslices.discovery.k8s.io: forbidden for "system:serviceaccount:x:y": grant list and watch (see deploy/rbac)`},
		{"nodes/watch", `watch nodes: forbidden for "system:serviceaccount:x:y": grant list and watch (see deploy/rbac)`},
		{"nodes/list", `list nodes: forbidden for "system:serviceaccount:x:y": grant list and watch (see deploy/rbac)`},
	} {
		t.Run(tc.refused, func(t *testing.T) {
			api := newFakeAPI(t)
			api.streaming = !strings.HasSuffix(tc.refused, "/list")
			api.forbid(tc.refused)
			r := run(t, newConfig(api, ""))
			select {
			case err := <-r.ended:
				require.EqualError(t, err, tc.want)
			case <-time.After(deadline):
				t.Fatal("it goes on")
			}
			require.False(t, r.st.Snapshot().Synced())
		})
	}
}

func TestRefusedLaterIsOnlyStale(t *testing.T) {
	api := newFakeAPI(t)
	api.put(service("a", ""))
	r := synced(t, newConfig(api, ""))
	api.forbid("services/list")
	api.forbid("services/watch")
	api.closeWatches()
	require.Eventually(t, func() bool { return r.Ready() != nil }, deadline, time.Millisecond)
	require.ErrorContains(t, r.Ready(), " services: forbidden for \"system:serviceaccount:x:y\"")
	require.Equal(t, "ns/a", r.state())
	require.NotZero(t, value(t, r.session.metrics.errors.WithLabelValues("services", "watch")))
	api.allow("services/list")
	api.allow("services/watch")
	require.Eventually(t, func() bool { return r.Ready() == nil }, deadline, time.Millisecond)
	require.Empty(t, r.ended)
}

func TestUnreachableAtStart(t *testing.T) {
	t.Run("nobody listens", func(t *testing.T) {
		api := newFakeAPI(t)
		api.stop()
		config := newConfig(api, "")
		config.StartupTimeout = 200 * time.Millisecond
		r := run(t, config)
		require.ErrorContains(t, <-r.ended, "cannot reach the API server "+api.url()+" within 200ms (--startup-timeout): ")
		require.ErrorContains(t, r.Ready(), "not synced: waiting for endpointslices, nodes, services: ")
	})
	t.Run("it never answers", func(t *testing.T) {
		api := newFakeAPI(t)
		hanging := make(chan struct{})
		api.hanging = hanging
		defer close(hanging)
		config := newConfig(api, "")
		config.StartupTimeout = 200 * time.Millisecond
		r := run(t, config)
		require.ErrorContains(t, <-r.ended, "within 200ms (--startup-timeout): no answer")
	})
	t.Run("it comes in time", func(t *testing.T) {
		api := newFakeAPI(t)
		api.stop()
		config := newConfig(api, "")
		config.StartupTimeout = deadline
		r := run(t, config)
		require.Eventually(t, func() bool { return r.session.health.err() != nil }, deadline, time.Millisecond)
		api.start()
		r.requireState("")
		require.Eventually(t, func() bool { return r.st.Snapshot().Synced() }, deadline, time.Millisecond)
	})
}

func TestBadConfiguration(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	kubeconfig := func(cluster string) string {
		return "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n" +
			"users: [{name: u, user: {}}]\nclusters: [{name: c, cluster: {" + cluster + "}}]\n"
	}
	garbage := write("garbage.pem", "no certificate")
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"no server known", func(c *Config) { c.Server = "" }, []string{"give --kubeconfig, set $KUBECONFIG"}},
		{"no such kubeconfig", func(c *Config) { c.Kubeconfig = filepath.Join(dir, "none") }, []string{"--kubeconfig", "no such file"}},
		{"garbage", func(c *Config) { c.Kubeconfig = write("garbage", "\tx: [") }, []string{"--kubeconfig"}},
		{"CA file missing", func(c *Config) {
			c.Server, c.Kubeconfig = "", write("k1", kubeconfig("server: https://127.0.0.1:1, certificate-authority: /none.pem"))
		}, []string{"/none.pem"}},
		{"CA file garbage", func(c *Config) {
			c.Server, c.Kubeconfig = "", write("k2", kubeconfig("server: https://127.0.0.1:1, certificate-authority: "+garbage))
		}, []string{"TLS of the API server https://127.0.0.1:1"}},
		{"every fault at once", func(c *Config) {
			c.Server, c.CommitDelay, c.StartupTimeout, c.ServiceProxyName = "nonsense", -1, 0, "not a label"
		}, []string{"--server", "--commit-delay", "--startup-timeout", "--service-proxy-name"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			config := newConfig(&fakeAPI{addr: "127.0.0.1:1"}, "")
			tc.change(config)
			_, err := New(config)
			for _, want := range tc.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
	t.Run("KUBECONFIG", func(t *testing.T) {
		t.Setenv("KUBECONFIG", write("k3", kubeconfig("server: https://192.0.2.1:6443")))
		config := newConfig(&fakeAPI{}, "")
		config.Server = ""
		source, err := New(config)
		require.NoError(t, err)
		require.Equal(t, "https://192.0.2.1:6443", source.session.client.host)
		config.Server = "https://192.0.2.2:6443"
		source, err = New(config)
		require.NoError(t, err)
		require.Equal(t, "https://192.0.2.2:6443", source.session.client.host)
	})
}

func TestMalformedObjectsAreSurvived(t *testing.T) {
	api := newFakeAPI(t)
	names := slice("a-2", "a", "", "example.org")
	names.AddressType = discoveryv1.AddressTypeFQDN
	bad := slice("a-1", "a", "", "10.0.0.1", "2001:db8::1", "nonsense")
	bad.Ports = []discoveryv1.EndpointPort{{}, {}}
	api.put(service("a", ""), names, bad, slice("orphan", "", "", "10.0.0.7"))
	r := synced(t, newConfig(api, ""))
	require.Equal(t, "ns/a 10.0.0.1", r.state())
	t.Log("an object that is carried no more is a deletion")
	api.put(without(service("a", ""), func(svc *corev1.Service) { svc.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName} }))
	bad = bad.DeepCopy()
	bad.Labels = nil
	api.put(bad)
	r.requireState("")
}
