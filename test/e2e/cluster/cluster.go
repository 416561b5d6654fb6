// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a real Kubernetes control plane for the end-to-end tests: etcd, kube-apiserver and, of
// kube-controller-manager, the EndpointSlice controllers. There is no kubelet and no scheduler: a test makes Nodes and
// Pods through the API and writes their status by hand, and the real controller makes the EndpointSlices of them.
//
// A cluster's life: Start writes its certificates, starts etcd, then the API server, then the controllers, and
// returns when each answers (about five seconds). StopAPIServer and StartAPIServer take the API server away and
// bring it back on the same port with the same state. Stop ends everything; should the test process be killed, the
// kernel ends them.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// The address ranges of Services.
const (
	ServiceCIDR4 = "10.96.0.0/16"
	ServiceCIDR6 = "fd00:96::/108"
)

// startTimeout is how long one component may take to answer, on a busy machine.
const startTimeout = 2 * time.Minute

// Cluster is a running control plane.
type Cluster struct {
	URL        string // of the API server
	Kubeconfig string // of an administrator
	CA         *CA

	bin, dir    string
	client      *http.Client // the same administrator
	etcdPort    int
	etcd        *proc.Process
	apiserver   *proc.Process
	controllers *proc.Process
}

// Start starts a control plane from the programs in bin, with its files in dir.
func Start(ctx context.Context, bin, dir string) (*Cluster, error) {
	c := &Cluster{bin: bin, dir: dir}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.logs(), c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	c.etcdPort = ports[0]
	c.URL = "https://127.0.0.1:" + strconv.Itoa(ports[2])
	if err := c.writeCertificates(); err != nil {
		return err
	}
	if err := c.startEtcd(ports[0], ports[1]); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	return c.startControllers()
}

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) writeCertificates() (err error) {
	if c.CA, err = NewCA(c.dir, "ca"); err != nil {
		return err
	}
	if _, err = c.CA.Sign("apiserver", nil, []string{"127.0.0.1", "localhost"}); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	err = errors.Join(writeKey(c.file("sa.key"), key), writePEM(c.file("sa.pub"), "PUBLIC KEY", public))
	if err != nil {
		return err
	}
	if c.Kubeconfig, err = c.KubeconfigFor("admin", "system:masters"); err != nil {
		return err
	}
	c.client, err = c.newClient()
	return err
}

// KubeconfigFor writes a kubeconfig for a user, known to the API server by a certificate of that name and groups.
func (c *Cluster) KubeconfigFor(user string, groups ...string) (string, error) {
	pair, err := c.CA.Sign(user, groups, nil)
	if err != nil {
		return "", err
	}
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: %[3]q, user: {client-certificate: %[4]q, client-key: %[5]q}}]
contexts: [{name: test, context: {cluster: test, user: %[3]q}}]
current-context: test
`, c.URL, c.CA.File, user, pair.Cert, pair.Key)
	file := c.file(user + ".kubeconfig")
	return file, os.WriteFile(file, []byte(config), 0o600)
}

func (c *Cluster) startEtcd(clientPort, peerPort int) (err error) {
	client, peer := localURL(clientPort), localURL(peerPort)
	c.etcd, err = c.run("etcd",
		"--name=test", "--data-dir="+c.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=test="+peer)
	return err
}

// StartAPIServer starts the API server and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) (err error) {
	_, port, err := net.SplitHostPort(c.URL[len("https://"):])
	if err != nil {
		return err
	}
	c.apiserver, err = c.run("kube-apiserver",
		"--etcd-servers="+localURL(c.etcdPort),
		"--bind-address=127.0.0.1", "--secure-port="+port,
		// No one reaches it by this address: the kubernetes Service gets no endpoints.
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file="+c.file("apiserver.crt"), "--tls-private-key-file="+c.file("apiserver.key"),
		"--client-ca-file="+c.CA.File,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+c.file("sa.pub"), "--service-account-signing-key-file="+c.file("sa.key"),
		"--service-cluster-ip-range="+ServiceCIDR4+","+ServiceCIDR6,
		"--authorization-mode=RBAC", "--allow-privileged=true",
		// Pods are made without the controller that makes the default ServiceAccount of a namespace.
		"--disable-admission-plugins=ServiceAccount",
		"--profiling=false", "-v=1")
	if err != nil {
		return err
	}
	return c.waitFor(ctx, c.apiserver, func(ctx context.Context) error {
		return c.Do(ctx, http.MethodGet, "/readyz", nil, nil)
	})
}

// StopAPIServer kills the API server, as a crash would. Its state is in etcd and stays.
func (c *Cluster) StopAPIServer() { c.apiserver.Kill() }

func (c *Cluster) startControllers() (err error) {
	c.controllers, err = c.run("kube-controller-manager",
		"--controllers=endpointslice-controller,endpointslice-mirroring-controller",
		"--kubeconfig="+c.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--kube-api-qps=200", "--kube-api-burst=400", "-v=1")
	return err
}

// Stop ends everything.
func (c *Cluster) Stop() error {
	for _, p := range []*proc.Process{c.controllers, c.apiserver, c.etcd} {
		if p != nil {
			p.Kill()
		}
	}
	return nil
}

func (c *Cluster) run(name string, args ...string) (*proc.Process, error) {
	path := filepath.Join(c.bin, name)
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("%w (run `make kubernetes`)", err)
	}
	return proc.Start(proc.Spec{Path: path, Args: args, Dir: c.dir})
}

// waitFor polls until check is content, the process has ended or the time is over.
func (c *Cluster) waitFor(ctx context.Context, p *proc.Process, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.Done():
			return fmt.Errorf("%s ended at start", p.Name)
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %s: %w", p.Name, startTimeout, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// logs is the end of what each component wrote, as an error that explains a failed start.
func (c *Cluster) logs() error {
	var errs []error
	for _, p := range []*proc.Process{c.etcd, c.apiserver, c.controllers} {
		if p != nil {
			text := p.Stderr.String()
			errs = append(errs, fmt.Errorf("--- %s:\n%s", p.Name, text[max(0, len(text)-2000):]))
		}
	}
	return errors.Join(errs...)
}

func localURL(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// freePorts finds ports that no one listens on. They are below those that the kernel gives to outgoing connections,
// so that they are still free a moment later, and when the API server is restarted.
func freePorts(n int) ([]int, error) {
	var ports []int
	for port := 21000 + os.Getpid()%10000; len(ports) < n; port++ {
		if port > 32000 {
			return nil, errors.New("no free ports")
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		ports = append(ports, port)
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return ports, nil
}
