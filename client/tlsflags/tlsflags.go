// SPDX-License-Identifier: Apache-2.0

// Package tlsflags holds the files of one side of a TLS connection: a key and a certificate to show, and the CA that
// signed the other side's.
//
// Files are read again for each handshake, so that a rotated certificate is used without a restart. Nothing here is
// ever less than what was asked for: a file that cannot be read ends in an error or in handshakes that fail, never in
// a connection that is not authenticated.
package tlsflags

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kpng/client/internal/flagset"
)

// Flags are the paths of PEM files, each empty when there is none.
type Flags struct {
	KeyFile, CertFile, CAFile string
}

// FlagSet is what flags are bound to: both [flag.FlagSet] and [pflag.FlagSet] are one.
type FlagSet interface {
	DurationVar(varPtr *time.Duration, name string, value time.Duration, doc string)
	IntVar(varPtr *int, name string, value int, doc string)
	StringVar(varPtr *string, name, value, doc string)
	Uint64Var(varPtr *uint64, name string, value uint64, doc string)
}

// Bind returns new Flags, bound without a prefix.
func Bind(flags FlagSet) *Flags {
	f := &Flags{}
	f.Bind(flags, "")
	return f
}

// Bind binds --PREFIXtls-key, --PREFIXtls-crt and --PREFIXtls-ca.
func (f *Flags) Bind(flags FlagSet, prefix string) {
	flagset.String(flags, &f.KeyFile, prefix+"tls-key", "", "PEM `file` with the TLS key")
	flagset.String(flags, &f.CertFile, prefix+"tls-crt", "", "PEM `file` with the TLS certificate")
	flagset.String(flags, &f.CAFile, prefix+"tls-ca", "", "PEM `file` with the CA that the other side's TLS certificate must be signed by")
}

// Validate reports every file that is missing or cannot be used.
func (f *Flags) Validate() error {
	_, err := f.Load()
	return err
}

// Load returns the configuration that the files make, nil when there are none: then TLS is not asked for. It serves
// both sides: as a server's, with a CA, clients must show a certificate that it signed.
//
// The key and the certificate are read again for each handshake; the CA is the one of now.
func (f *Flags) Load() (*tls.Config, error) {
	if f == nil || *f == (Flags{}) {
		return nil, nil //nolint:nilnil // no TLS is not an error, and Config has the same meaning of nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	var faults []error
	if f.hasCertificate() {
		if _, err := f.certificate(); err != nil {
			faults = append(faults, err)
		}
		files := *f
		cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return files.certificate() }
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return files.certificate() }
	}
	if f.CAFile != "" {
		pool, err := f.ca()
		if err != nil {
			faults = append(faults, err)
		}
		cfg.RootCAs, cfg.ClientCAs, cfg.ClientAuth = pool, pool, tls.RequireAndVerifyClientCert
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return cfg, nil
}

// Config is Load for callers that do not handle errors: with a file that cannot be used, the fault is logged and every
// handshake of the configuration fails with it.
func (f *Flags) Config() *tls.Config {
	cfg, err := f.Load()
	if err == nil {
		return cfg
	}
	klog.ErrorS(err, "TLS cannot be used")
	none := x509.NewCertPool()
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    none, ClientCAs: none, ClientAuth: tls.RequireAndVerifyClientCert,
		GetConfigForClient:   func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, err },
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, err },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return nil, err },
		VerifyConnection:     func(tls.ConnectionState) error { return err },
	}
}

func (f *Flags) hasCertificate() bool { return f.KeyFile != "" || f.CertFile != "" }

// certificate reads the key and the certificate.
func (f *Flags) certificate() (*tls.Certificate, error) {
	switch {
	case f.KeyFile == "":
		return nil, fmt.Errorf("TLS certificate %s is given without its key: give the key's file too", f.CertFile)
	case f.CertFile == "":
		return nil, fmt.Errorf("TLS key %s is given without its certificate: give the certificate's file too", f.KeyFile)
	}
	cert, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("TLS certificate %s with key %s: %w", f.CertFile, f.KeyFile, err)
	}
	return &cert, nil
}

func (f *Flags) ca() (*x509.CertPool, error) {
	data, err := os.ReadFile(f.CAFile)
	if err != nil {
		return nil, fmt.Errorf("TLS CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("TLS CA %s: no PEM certificate in it", f.CAFile)
	}
	return pool, nil
}
