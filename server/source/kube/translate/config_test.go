// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestValidateReportsEveryFault(t *testing.T) {
	require.NoError(t, (&Config{ServiceProxyName: "x", NodeLabels: []string{"*/zone"}}).Validate())
	err := (&Config{ServiceProxyName: "not a label", ServiceLabels: []string{"[a"}, NodeAnnotations: []string{"ok", "[]"}}).Validate()
	require.ErrorContains(t, err, `--service-proxy-name "not a label"`)
	require.ErrorContains(t, err, `--with-service-labels "[a"`)
	require.ErrorContains(t, err, `--with-node-annotations "[]"`)
}

// The selection in a file and the selection by an API server are the same.
func TestSelection(t *testing.T) {
	const name = LabelServiceProxyName
	for _, tc := range []struct {
		proxy  string
		labels map[string]string
		want   bool
	}{
		{"", nil, true},
		{"", map[string]string{"a": "b"}, true},
		{"", map[string]string{name: "x"}, false},
		{"", map[string]string{name: ""}, false},
		{"x", nil, false},
		{"x", map[string]string{name: "x"}, true},
		{"x", map[string]string{name: "y"}, false},
		{"x", map[string]string{name: ""}, false},
	} {
		config := &Config{ServiceProxyName: tc.proxy}
		selector, err := labels.Parse(config.Selector())
		require.NoError(t, err)
		require.Equal(t, tc.want, config.Selects(tc.labels), "%+v", tc)
		require.Equal(t, tc.want, selector.Matches(labels.Set(tc.labels)), "%+v", tc)
	}
}

func TestHandwrittenSlicesAreThoseWithoutTheLabel(t *testing.T) {
	selector, err := labels.Parse((&Config{ServiceProxyName: "x"}).HandwrittenSelector("svc"))
	require.NoError(t, err)
	require.True(t, selector.Matches(labels.Set{"kubernetes.io/service-name": "svc"}))
	require.True(t, selector.Matches(labels.Set{"kubernetes.io/service-name": "svc", LabelServiceProxyName: "y"}))
	require.False(t, selector.Matches(labels.Set{"kubernetes.io/service-name": "svc", LabelServiceProxyName: "x"}))
	require.False(t, selector.Matches(labels.Set{"kubernetes.io/service-name": "other"}))

	svc := &corev1.Service{}
	require.True(t, Handwritten(svc))
	svc.Spec.Type = corev1.ServiceTypeExternalName
	require.False(t, Handwritten(svc))
	svc.Spec = corev1.ServiceSpec{Selector: map[string]string{"a": "b"}}
	require.False(t, Handwritten(svc))
}
