// SPDX-License-Identifier: Apache-2.0

package localtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// CA signs certificates for a test.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA returns a new CA.
func NewCA(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t}
	template := ca.template("test CA")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	var raw []byte
	raw, ca.key = ca.sign(template, template, nil)
	cert, err := x509.ParseCertificate(raw)
	require.NoError(t, err)
	ca.cert = cert
	return ca
}

func (ca *CA) template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	require.NoError(ca.t, err)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
}

func (ca *CA) sign(template, parent *x509.Certificate, signer *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(ca.t, err)
	if signer == nil {
		signer = key
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(ca.t, err)
	return raw, key
}

// Pool holds the CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Write writes ca.crt, tls.crt and tls.key to a directory: a new certificate for this machine and the CA itself.
func (ca *CA) Write(dir, name string) (key, crt, caFile string) {
	raw, k := ca.sign(ca.template(name), ca.cert, ca.key)
	keyRaw, err := x509.MarshalPKCS8PrivateKey(k)
	require.NoError(ca.t, err)
	write := func(file, kind string, raw []byte) string {
		path := filepath.Join(dir, file)
		require.NoError(ca.t, os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}), 0o600))
		require.NoError(ca.t, os.Rename(path+".new", path))
		return path
	}
	return write("tls.key", "PRIVATE KEY", keyRaw), write("tls.crt", "CERTIFICATE", raw), write("ca.crt", "CERTIFICATE", ca.cert.Raw)
}

// ServerConfig is that of a server whose clients must show a certificate of the CA.
func (ca *CA) ServerConfig() *tls.Config {
	raw, key := ca.sign(ca.template("server"), ca.cert, ca.key)
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{{Certificate: [][]byte{raw}, PrivateKey: key}},
		ClientCAs:    ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}
