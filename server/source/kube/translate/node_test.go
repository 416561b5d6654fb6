// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/api/globalv1"
)

func TestNode(t *testing.T) {
	const in = `
metadata:
  name: node-1
  labels: {kubernetes.io/hostname: h, topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r, other: o}
  annotations: {a: "1"}`
	defaults := &Config{}
	defaults.BindFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	for _, tc := range []struct {
		name   string
		config *Config
		want   string
	}{
		{"defaults", defaults, `
Name: node-1
Labels: {kubernetes.io/hostname: h, topology.kubernetes.io/zone: z, topology.kubernetes.io/region: r}
Topology: {Node: node-1, Zone: z}`},
		{"the zone also without its label", &Config{NodeLabels: []string{"oth*"}, NodeAnnotations: []string{"a"}}, `
Name: node-1
Labels: {other: o}
Annotations: {a: "1"}
Topology: {Node: node-1, Zone: z}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, problems := tc.config.Node(object[metav1.PartialObjectMetadata](t, in))
			require.Empty(t, problems)
			requireSame(t, parse(t, tc.want, &globalv1.Node{}), got)
		})
	}
	got, problems := defaults.Node(&metav1.PartialObjectMetadata{})
	require.Nil(t, got)
	require.Len(t, problems, 1)
}
