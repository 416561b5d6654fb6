// SPDX-License-Identifier: Apache-2.0

//go:build linux

package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"sigs.k8s.io/kpng/internal/netlab"
)

const (
	nodeName  = "node-a"
	proxyName = "mine"
	token     = "the token"
)

// TestRuns runs the command lines of the pods as the kubelet would: with the user, the capabilities and the mounts of the manifest, a
// root and a /proc/sys that cannot be written, and the programs of the image; in a network namespace with an API server.
func TestRuns(t *testing.T) {
	bin := t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin+"/", "../cmd/kpng", "../cmd/kpng-allip", "../cmd/kpng-nat").CombinedOutput()
	require.NoError(t, err, "%s", out)
	for dir, test := range map[string]struct {
		settings []string
		show     []string // prints the rules
		labelled bool     // which service is served
	}{
		"allip":                     {[]string{"service-proxy-name=" + proxyName, "allow-cidrs=192.0.2.0/24"}, []string{"iptables", "-t", "nat", "-S"}, true},
		"nat/beside-kube-proxy":     {[]string{"service-proxy-name=" + proxyName, "cluster-cidr=10.244.0.0/16"}, []string{"nft", "list", "ruleset"}, true},
		"nat/instead-of-kube-proxy": {[]string{"apiserver-host=127.0.0.1", "apiserver-port=6443", "cluster-cidr=10.244.0.0/16"}, []string{"nft", "list", "ruleset"}, false},
	} {
		t.Run(dir, func(t *testing.T) {
			t.Parallel()
			k := newKubelet(t, netlab.ForTest(t).Router(nodeName), bin)
			if !test.labelled { // then nobody serves this address before the program does
				k.env["KUBERNETES_SERVICE_HOST"] = "10.96.0.1"
			}
			objects := build(t, onTop(t, dir, test.settings...))
			pod := daemonSet(t, objects).Spec.Template.Spec
			var backend *netlab.Cmd
			for i, c := range pod.Containers {
				if i == len(pod.Containers)-1 {
					c.Args = append(c.Args, "--cleanup-on-exit") // as the READMEs have it before a removal
				}
				backend = k.start(c, objects)
			}
			mine, other := "10.244.0.10", "10.244.0.20"
			if test.labelled {
				mine, other = other, mine
			}
			rules := func() string {
				out, err := k.host.Command(t.Context(), test.show[0], test.show[1:]...).CombinedOutput()
				require.NoError(t, err, "%s", out)
				return string(out)
			}
			require.Eventually(t, func() bool { return strings.Contains(rules(), mine) }, 30*time.Second, 50*time.Millisecond)
			require.NotContains(t, rules(), other)
			if dir == "allip" {
				require.NotContains(t, rules(), "198.51.100.", "not in allow-cidrs")
			}
			for _, c := range pod.Containers {
				k.isUp(c.LivenessProbe)
				k.isUp(c.ReadinessProbe)
			}
			if dir == "nat/instead-of-kube-proxy" {
				health := &probe{}
				health.HTTPGet.Host, health.HTTPGet.Port, health.HTTPGet.Path = "127.0.0.1", 10256, "/healthz"
				k.isUp(health)
			}
			require.NoError(t, backend.Process.Signal(syscall.SIGTERM))
			require.NoError(t, backend.Wait())
			require.NotContains(t, rules(), mine, "--cleanup-on-exit")
		})
	}
}

// onTop is a kustomization with settings, made as the READMEs say.
func onTop(t *testing.T, dir string, settings ...string) string {
	t.Helper()
	here, err := os.Getwd()
	require.NoError(t, err)
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	base, err := filepath.Rel(top, filepath.Join(here, dir))
	require.NoError(t, err)
	text := "namespace: kube-system\nresources: [" + base + "]\nconfigMapGenerator:\n- name: kpng\n  behavior: merge\n  literals:\n"
	for _, s := range settings {
		text += "  - " + s + "\n"
	}
	require.NoError(t, os.WriteFile(filepath.Join(top, "kustomization.yaml"), []byte(text), 0o600))
	return top
}

// kubelet runs the containers of one pod on a node with an API server.
type kubelet struct {
	t    *testing.T
	host *netlab.Host
	bin  string
	dir  string            // of the volumes, by name
	env  map[string]string // what a kubelet gives to every container
	// endpoints are the addresses of the services' pods, by the last number of the service's.
	endpoints map[string]string
}

func newKubelet(t *testing.T, host *netlab.Host, bin string) *kubelet {
	k := &kubelet{
		t: t, host: host, bin: bin, dir: t.TempDir(),
		env:       map[string]string{"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"},
		endpoints: map[string]string{"10": "10.244.0.10", "20": "10.244.0.20"},
	}
	ca := k.apiServer()
	const fsGroup = 65532
	for _, d := range []string{"run", "token"} {
		path := filepath.Join(k.dir, d)
		require.NoError(t, os.Mkdir(path, 0o700))
		require.NoError(t, os.Chown(path, 0, fsGroup))
		require.NoError(t, os.Chmod(path, 0o770|os.ModeSetgid))
	}
	for name, content := range map[string][]byte{"token/token": []byte(token), "token/ca.crt": ca} {
		path := filepath.Join(k.dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o440))
		require.NoError(t, os.Chown(path, 0, fsGroup))
	}
	require.NoError(t, os.WriteFile(filepath.Join(k.dir, "xtables-lock"), nil, 0o600))
	return k
}

// inside makes the container's file system: $1 is the folder of binaries, then come mounts as three words each (what, where, ro or
// rw), then -- and the program.
const inside = `
mount -t tmpfs -o mode=755 none /run
mkdir /run/bin
mount --bind "$1" /run/bin
shift
while [ "$1" != -- ]; do
	if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${2%/*}" && touch "$2"; fi
	mount --bind "$1" "$2"
	mount -o "remount,bind,$3" "$2"
	shift 3
done
shift
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
exec "$@"`

// start starts a container, which ends with the test at the latest.
func (k *kubelet) start(c container, objects []object) *netlab.Cmd {
	args := []string{"--mount", "sh", "-euc", inside, "sh", k.bin}
	for _, m := range c.VolumeMounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		args = append(args, filepath.Join(k.dir, m.Name), m.MountPath, mode)
	}
	bounding := "-all"
	for _, name := range c.SecurityContext.Capabilities.Add {
		bounding += ",+" + strings.ToLower(name)
	}
	args = append(args, "--", "setpriv", fmt.Sprintf("--reuid=%d", c.SecurityContext.RunAsUser), fmt.Sprintf("--regid=%d", c.SecurityContext.RunAsGroup),
		"--groups=65532", "--bounding-set="+bounding, "--inh-caps=-all", "--no-new-privs", "--pdeathsig=KILL")
	env := k.environment(c, objects)
	args = append(args, "env", "-i")
	expand := []string{}
	for name, value := range env {
		args = append(args, name+"="+value)
		expand = append(expand, "$("+name+")", value)
	}
	args = append(args, "/run/bin"+c.Command[0])
	for _, arg := range c.Args {
		args = append(args, strings.NewReplacer(expand...).Replace(arg))
	}
	cmd := k.host.Command(k.t.Context(), "unshare", args...)
	k.run(cmd, c.Name)
	return cmd
}

// run starts a program, and shows what it logged when the test has failed.
func (k *kubelet) run(cmd *netlab.Cmd, name string) {
	k.t.Helper()
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(k.t, cmd.Start())
	k.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the log is whole then; an error only tells that it had been waited for
		if k.t.Failed() {
			k.t.Logf("%s: %s", name, &log)
		}
	})
}

func (k *kubelet) environment(c container, objects []object) map[string]string {
	env := map[string]string{"PATH": "/"} // the image kpng has no program of others
	if strings.HasPrefix(c.Image, "kpng-iptables:") {
		env["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
	}
	maps.Copy(env, k.env)
	for _, e := range c.Env {
		from := e.ValueFrom.ConfigMapKeyRef
		if from == nil {
			require.Equal(k.t, "spec.nodeName", e.ValueFrom.FieldRef.FieldPath)
			env[e.Name] = nodeName
			continue
		}
		found := false
		for _, o := range objects {
			if o.Kind == "ConfigMap" && o.Metadata.Name == from.Name {
				env[e.Name], found = o.Data[from.Key]
			}
		}
		require.True(k.t, found, "%s of ConfigMap %s", from.Key, from.Name)
	}
	return env
}

// isUp waits until a probe succeeds.
func (k *kubelet) isUp(p *probe) {
	k.t.Helper()
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, addr string) (conn net.Conn, err error) {
		err = k.host.Do(func() error {
			conn, err = net.Dial(network, addr)
			return err
		})
		return conn, err
	}}}
	url := fmt.Sprintf("http://%s:%v%s", p.HTTPGet.Host, p.HTTPGet.Port, p.HTTPGet.Path)
	require.Eventually(k.t, func() bool {
		resp, err := client.Get(url)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, 30*time.Second, 50*time.Millisecond, url)
}

// apiServer serves two services and their endpoints to who has the token, and returns the CA to trust.
func (k *kubelet) apiServer() []byte {
	var listener net.Listener
	require.NoError(k.t, k.host.Do(func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:6443")
		return err
	}))
	ended := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		list := k.lists()[strings.Replace(r.URL.Path, "/namespaces/default/", "/", 1)]
		query := r.URL.Query()
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			w.WriteHeader(http.StatusUnauthorized)
		case list == nil:
			w.WriteHeader(http.StatusNotFound)
		case query.Has("sendInitialEvents"): // as an API server that cannot do that
			w.WriteHeader(http.StatusUnprocessableEntity)
		case query.Has("watch"):
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			select { // nothing happens
			case <-r.Context().Done():
			case <-ended:
			}
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list(r))
		}
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	k.t.Cleanup(func() { close(ended); server.Close() })
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// lists are the answers by path: a service that kube-proxy would serve, and one with the label.
func (k *kubelet) lists() map[string]func(*http.Request) any {
	version := meta.ListMeta{ResourceVersion: "1"}
	label := map[string]string{"service.kubernetes.io/service-proxy-name": proxyName}
	return map[string]func(*http.Request) any{
		"/api/v1/services": func(r *http.Request) any {
			all := []core.Service{service("plain", "10", nil), service("labelled", "20", label)}
			return core.ServiceList{TypeMeta: meta.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}, ListMeta: version,
				Items: selected(all, r, func(s core.Service) map[string]string { return s.Labels })}
		},
		"/apis/discovery.k8s.io/v1/endpointslices": func(r *http.Request) any {
			all := []discovery.EndpointSlice{slice("plain", k.endpoints["10"], nil), slice("labelled", k.endpoints["20"], label)}
			return discovery.EndpointSliceList{TypeMeta: meta.TypeMeta{Kind: "EndpointSliceList", APIVersion: "discovery.k8s.io/v1"}, ListMeta: version,
				Items: selected(all, r, func(s discovery.EndpointSlice) map[string]string { return s.Labels })}
		},
		"/api/v1/nodes": func(r *http.Request) any {
			about := meta.ObjectMeta{Name: nodeName, ResourceVersion: "1"}
			if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") { // so kpng asks
				return meta.PartialObjectMetadataList{TypeMeta: meta.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"}, ListMeta: version,
					Items: []meta.PartialObjectMetadata{{ObjectMeta: about}}}
			}
			address := core.NodeAddress{Type: core.NodeInternalIP, Address: k.host.Addr(false).String()}
			return core.NodeList{TypeMeta: meta.TypeMeta{Kind: "NodeList", APIVersion: "v1"}, ListMeta: version,
				Items: []core.Node{{ObjectMeta: about, Status: core.NodeStatus{Addresses: []core.NodeAddress{address}}}}}
		},
	}
}

func selected[T any](all []T, r *http.Request, of func(T) map[string]string) (some []T) {
	s, err := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil {
		return nil
	}
	for _, item := range all {
		if s.Matches(labels.Set(of(item))) {
			some = append(some, item)
		}
	}
	return some
}

func service(name, last string, labels map[string]string) core.Service {
	return core.Service{
		ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: name, ResourceVersion: "1", Labels: labels},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeClusterIP, ClusterIP: "10.96.0." + last, ClusterIPs: []string{"10.96.0." + last},
			IPFamilies: []core.IPFamily{core.IPv4Protocol}, ExternalIPs: []string{"192.0.2." + last, "198.51.100." + last},
			Ports: []core.ServicePort{{Protocol: core.ProtocolTCP, Port: 80}},
		},
	}
}

func slice(service, address string, labels map[string]string) discovery.EndpointSlice {
	node, port, protocol, unnamed := nodeName, int32(8080), core.ProtocolTCP, ""
	s := discovery.EndpointSlice{
		ObjectMeta:  meta.ObjectMeta{Namespace: "default", Name: service + "-x", ResourceVersion: "1", Labels: map[string]string{discovery.LabelServiceName: service}},
		AddressType: discovery.AddressTypeIPv4,
		Endpoints:   []discovery.Endpoint{{Addresses: []string{address}, NodeName: &node}},
		Ports:       []discovery.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
	}
	maps.Copy(s.Labels, labels)
	return s
}
