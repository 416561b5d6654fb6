// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// explain turns an error of the API server or of the way to it into one line that says what to do about it.
func explain(host, verb string, r *resource, err error) error {
	what := verb + " " + r.String()
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: forbidden%s: grant list and watch (see deploy/rbac)", what, forUser(err))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %s does not accept the credentials: check the token or certificate of the kubeconfig or service account", what, host)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %s has no %s in %s: Kubernetes 1.21 or later is needed, and --server must be the root URL", what, host, r.name, r.group)
	case isCertificateError(err):
		return fmt.Errorf("%s: TLS with %s: %w: check the CA, the server's name and the client certificate in the kubeconfig", what, host, oneLine(err))
	}
	if apierrors.IsBadRequest(err) && strings.HasPrefix(host, "http:") {
		return fmt.Errorf("%s: %w: does %s want https?", what, oneLine(err), host)
	}
	return fmt.Errorf("%s: %w", what, oneLine(err))
}

// hopeless tells whether waiting will not help.
func hopeless(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) || isCertificateError(err)
}

func isCertificateError(err error) bool {
	var verification *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var hostname x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &hostname) ||
		errors.As(err, &invalid) || errors.As(err, &alert)
}

var userInMessage = regexp.MustCompile(`User ("[^"]*")`)

// forUser returns ` for "user"`, as far as the API server named who it took us for.
func forUser(err error) string {
	if match := userInMessage.FindStringSubmatch(err.Error()); match != nil {
		return " for " + match[1]
	}
	return ""
}

// oneLine leaves out the long URL of a request, and line breaks.
func oneLine(err error) error {
	var inURL *url.Error
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	if text := err.Error(); strings.ContainsAny(text, "\r\n") {
		return errors.New(strings.Join(strings.Fields(text), " "))
	}
	return err
}
