// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// tlsFiles are the TLS material of the listeners. With a CA, clients must show a certificate that it signed.
type tlsFiles struct{ key, cert, ca string }

func (f tlsFiles) set() bool { return f.key != "" || f.cert != "" || f.ca != "" }

func (f tlsFiles) validate() error {
	if f.set() && (f.key == "" || f.cert == "") {
		return errors.New("--listen-tls-key and --listen-tls-crt go together: give both")
	}
	return nil
}

// load reads the files.
func (f tlsFiles) load() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--listen-tls-crt %s, --listen-tls-key %s: %w", f.cert, f.key, err)
	}
	config := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{"h2"},
	}
	if f.ca == "" {
		return config, nil
	}
	pem, err := os.ReadFile(f.ca)
	if err != nil {
		return nil, fmt.Errorf("--listen-tls-ca: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("--listen-tls-ca %s: holds no PEM certificate", f.ca)
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return config, nil
}

// stamp changes when one of the files does.
func (f tlsFiles) stamp() (stamp [3]time.Time) {
	for i, name := range []string{f.key, f.cert, f.ca} {
		if info, err := os.Stat(name); err == nil {
			stamp[i] = info.ModTime()
		}
	}
	return stamp
}

// reloader gives each new connection the TLS configuration of the files as they are now, or, where they cannot be
// read, as they were last.
type reloader struct {
	files tlsFiles

	mu     sync.Mutex
	stamp  [3]time.Time
	config *tls.Config
}

func newReloader(files tlsFiles) (*reloader, error) {
	r := &reloader{files: files, stamp: files.stamp()}
	config, err := files.load()
	r.config = config
	return r, err
}

// serverConfig is the configuration to listen with.
func (r *reloader) serverConfig() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		NextProtos:         []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.current(), nil },
	}
}

func (r *reloader) current() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	stamp := r.files.stamp()
	if stamp == r.stamp {
		return r.config
	}
	config, err := r.files.load()
	if err != nil {
		// Not remembered as seen: a rotation replaces the files one after the other, so the next
		// connection may find them whole.
		klog.ErrorS(err, "TLS files changed but cannot be used; going on with the last good ones")
		return r.config
	}
	klog.InfoS("TLS files reloaded", "certificate", r.files.cert)
	r.stamp, r.config = stamp, config
	return config
}
