// SPDX-License-Identifier: Apache-2.0

package translate

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// LabelServiceProxyName is the label by which a Service says which proxy it is for. The EndpointSlice controller
// copies it to the slices that it makes for the Service.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// Selector selects, on the API server, the Services to serve and the EndpointSlices that a controller made for them.
func (c *Config) Selector() string {
	if c.ServiceProxyName == "" {
		return "!" + LabelServiceProxyName
	}
	return LabelServiceProxyName + "=" + c.ServiceProxyName
}

// HandwrittenSelector selects, on the API server, those EndpointSlices of a service that [Config.Selector] does not:
// nobody copied the label of the service to them.
func (c *Config) HandwrittenSelector(service string) string {
	return discoveryv1.LabelServiceName + "=" + service + "," + LabelServiceProxyName + "!=" + c.ServiceProxyName
}

// Selects tells whether an object with these labels is selected by [Config.Selector].
func (c *Config) Selects(labels map[string]string) bool {
	value, there := labels[LabelServiceProxyName]
	if c.ServiceProxyName == "" {
		return !there
	}
	return there && value == c.ServiceProxyName
}

// Handwritten tells whether the EndpointSlices of a service are not made by the EndpointSlice controller, because the
// service has no selector, so that they must be looked for by the name of the service.
func Handwritten(svc *corev1.Service) bool {
	return len(svc.Spec.Selector) == 0 && svc.Spec.Type != corev1.ServiceTypeExternalName
}
