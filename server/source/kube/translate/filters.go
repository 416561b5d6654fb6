// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kpng/api/localv1"
)

// sourceFilters carries loadBalancerSourceRanges: for each family in which the service has load-balancer addresses,
// the ranges of that family that may reach them.
//
// A filter may have no ranges, and then allows nobody. That is so when all ranges are of the other family or are
// malformed: whoever restricts the sources means to keep others out, so what cannot be understood must not open
// anything. (kube-proxy treats a family without ranges as open.)
func sourceFilters(svc *corev1.Service, targets *localv1.IPSet, problems *Problems) []*localv1.IPFilter {
	ranges, field := declaredRanges(svc)
	if len(ranges) == 0 || targets == nil {
		return nil
	}
	v4, v6 := sourceRanges(ranges, field, problems)
	var filters []*localv1.IPFilter
	if len(targets.V4) != 0 {
		filters = append(filters, &localv1.IPFilter{TargetIPs: &localv1.IPSet{V4: targets.V4}, SourceRanges: v4})
	}
	if len(targets.V6) != 0 {
		filters = append(filters, &localv1.IPFilter{TargetIPs: &localv1.IPSet{V6: targets.V6}, SourceRanges: v6})
	}
	return filters
}

// declaredRanges returns the ranges of the field or else of the annotation that preceded it, and which of them it was.
func declaredRanges(svc *corev1.Service) ([]string, string) {
	if len(svc.Spec.LoadBalancerSourceRanges) != 0 {
		return svc.Spec.LoadBalancerSourceRanges, "spec.loadBalancerSourceRanges"
	}
	const annotation = corev1.AnnotationLoadBalancerSourceRangesKey
	text := strings.TrimSpace(svc.Annotations[annotation])
	if text == "" {
		return nil, ""
	}
	return strings.Split(text, ","), "annotation " + annotation
}

func sourceRanges(ranges []string, field string, problems *Problems) (v4, v6 []string) {
	for i, text := range ranges {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		switch {
		case err != nil || prefix.Addr().Is4In6():
			problems.addf("%s[%d] %q is not a CIDR: left out, so nothing is allowed by it", field, i, text)
		case prefix.Addr().Is4():
			v4 = append(v4, prefix.Masked().String())
		default:
			v6 = append(v6, prefix.Masked().String())
		}
	}
	return sortedUnique(v4), sortedUnique(v6)
}
