// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kpng/api/globalv1"
	"sigs.k8s.io/kpng/api/localv1"
)

// MapIPAnnotation, set to "true" on a Service, asks for all traffic to its addresses and not only that to its ports.
const MapIPAnnotation = "kpng.sigs.k8s.io/map-ip"

// defaultAffinitySeconds is what the API server sets when sessionAffinityConfig has no timeout; a day is the most it
// accepts (k8s.io/api/core/v1, ClientIPConfig).
const (
	defaultAffinitySeconds = corev1.DefaultClientIPServiceAffinitySeconds
	maxAffinitySeconds     = 86400
)

// Service translates a Service. It returns nil for one that a proxy has nothing to do with: an ExternalName service
// is only a DNS alias.
func (c *Config) Service(svc *corev1.Service) (*globalv1.ServiceInfo, Problems) {
	var problems Problems
	if svc.Spec.Type == corev1.ServiceTypeExternalName || !named(svc.Namespace, svc.Name, &problems) {
		return nil, problems
	}
	spec := &svc.Spec
	out := &localv1.Service{
		Namespace:              svc.Namespace,
		Name:                   svc.Name,
		Type:                   string(spec.Type),
		MapIP:                  svc.Annotations[MapIPAnnotation] == "true",
		IPs:                    serviceIPs(svc, &problems),
		Ports:                  servicePorts(spec.Ports, &problems),
		ExternalTrafficToLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalTrafficToLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
		Labels:      selected(svc.Labels, c.ServiceLabels),
		Annotations: selected(svc.Annotations, c.ServiceAnnotations),
	}
	if n := spec.HealthCheckNodePort; n == 0 || isPort(n) {
		out.HealthCheckNodePort = n
	} else {
		problems.addf("spec.healthCheckNodePort %d is not in 1..65535: left out", n)
	}
	if out.Type == "" {
		out.Type = string(corev1.ServiceTypeClusterIP)
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.SessionAffinity = &localv1.Service_ClientIP{ClientIP: clientIP(spec.SessionAffinityConfig, &problems)}
	}
	out.IPFilters = sourceFilters(svc, out.IPs.LoadBalancerIPs, &problems)
	info := &globalv1.ServiceInfo{Service: out, PublishNotReadyAddresses: spec.PublishNotReadyAddresses}
	if at := svc.CreationTimestamp; !at.IsZero() {
		info.CreatedAt = at.Unix()
	}
	return info, problems
}

// named says whether an object can be told apart from others. A slash would make the paths of the wire protocol
// (namespace/name) ambiguous; no API server lets one through, a file might.
func named(namespace, name string, problems *Problems) bool {
	if namespace == "" || name == "" || strings.Contains(namespace+name, "/") {
		problems.addf("namespace %q and name %q must be there and have no slash: the object is left out", namespace, name)
		return false
	}
	return true
}

// serviceIPs returns ClusterIPs and ExternalIPs always, and LoadBalancerIPs when there are any.
func serviceIPs(svc *corev1.Service, problems *Problems) *localv1.ServiceIPs {
	ips := &localv1.ServiceIPs{}
	clusterIPs := svc.Spec.ClusterIPs
	if len(clusterIPs) == 0 && svc.Spec.ClusterIP != "" {
		clusterIPs = []string{svc.Spec.ClusterIP}
	}
	if len(clusterIPs) != 0 && clusterIPs[0] == corev1.ClusterIPNone {
		ips.Headless = true
		clusterIPs = nil
	}
	ips.ClusterIPs = addresses("spec.clusterIPs", clusterIPs, problems)
	ips.ExternalIPs = addresses("spec.externalIPs", svc.Spec.ExternalIPs, problems)
	if lb := loadBalancerIPs(svc, problems); len(lb.V4)+len(lb.V6) != 0 {
		ips.LoadBalancerIPs = lb
	}
	return ips
}

// loadBalancerIPs leaves out the addresses whose ipMode is Proxy: traffic to them must go through the load balancer
// even from within the cluster (KEP-1860).
func loadBalancerIPs(svc *corev1.Service, problems *Problems) *localv1.IPSet {
	var list []string
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IP == "" || ingress.IPMode != nil && *ingress.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		list = append(list, ingress.IP)
	}
	return addresses("status.loadBalancer.ingress", list, problems)
}

// clientIP survives a missing configuration, which old API servers stored and files may have.
func clientIP(config *corev1.SessionAffinityConfig, problems *Problems) *localv1.ClientIPAffinity {
	affinity := &localv1.ClientIPAffinity{TimeoutSeconds: defaultAffinitySeconds}
	if config == nil || config.ClientIP == nil || config.ClientIP.TimeoutSeconds == nil {
		return affinity
	}
	seconds := *config.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > maxAffinitySeconds {
		problems.addf("spec.sessionAffinityConfig.clientIP.timeoutSeconds %d is not in 1..%d: %d is used",
			seconds, maxAffinitySeconds, defaultAffinitySeconds)
		return affinity
	}
	affinity.TimeoutSeconds = seconds
	return affinity
}
