// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sigs.k8s.io/kpng/test/e2e/proc"
)

// build builds one of the real programs.
func build(ctx context.Context, dir, name string) (string, error) {
	out := filepath.Join(dir, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, "sigs.k8s.io/kpng/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return out, nil
}

// kpng is a running kpng that serves on a unix socket.
type kpng struct {
	*proc.Process
	socket  string
	metrics string // HOST:PORT
}

// startKpng starts kpng with a source and to-api, and returns when it is in sync.
func (b *bench) startKpng(ctx context.Context, name string, source ...string) (*kpng, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	k := &kpng{socket: filepath.Join(b.dir, name), metrics: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	args := append(append([]string{}, source...), "to-api", "--listen=unix://"+k.socket, "--metrics-listen="+k.metrics, "--pprof")
	if k.Process, err = proc.Start(proc.Spec{Path: b.kpng, Args: args}); err != nil {
		return nil, err
	}
	if err := k.waitReady(ctx, 2*time.Minute); err != nil {
		k.Kill()
		return nil, fmt.Errorf("%w\n%s", err, k.Stderr.String())
	}
	return k, nil
}

func (b *bench) fromKube() []string {
	return []string{"kube", "--kubeconfig=" + b.api.Kubeconfig, "--service-proxy-name=" + proxyName}
}

func (k *kpng) waitReady(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		text, err := get(ctx, "http://"+k.metrics+"/readyz")
		switch {
		case err == nil:
			return nil
		case !k.Running():
			return errors.New("kpng has ended")
		case time.Now().After(end) || ctx.Err() != nil:
			return fmt.Errorf("kpng is not ready: %w %s", err, text)
		}
	}
}

// profile writes a CPU profile of the next seconds to a file, when profiles are asked for. The caller waits for done.
func (b *bench) profile(ctx context.Context, k *kpng, name string, d time.Duration) (done func()) {
	if b.profiles == "" {
		return func() {}
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		seconds := max(1, int(d.Seconds()))
		text, err := get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", k.metrics, seconds))
		if err == nil {
			err = os.WriteFile(filepath.Join(b.profiles, name+".pprof"), []byte(text), 0o600)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "profile %s: %v\n", name, err)
		}
	}()
	return func() { <-finished }
}

// get returns the body of an answer 200.
func get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(text), err
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
