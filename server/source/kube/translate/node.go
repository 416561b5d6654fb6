// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kpng/api/globalv1"
)

// Node translates the metadata of a Node. Its zone is carried whether or not its label is.
func (c *Config) Node(meta metav1.Object) (*globalv1.Node, Problems) {
	var problems Problems
	name := meta.GetName()
	if name == "" || strings.Contains(name, "/") {
		problems.addf("name %q must be there and have no slash: the node is left out", name)
		return nil, problems
	}
	return &globalv1.Node{
		Name:        name,
		Labels:      selected(meta.GetLabels(), c.NodeLabels),
		Annotations: selected(meta.GetAnnotations(), c.NodeAnnotations),
		Topology:    &globalv1.TopologyInfo{Node: name, Zone: meta.GetLabels()[corev1.LabelTopologyZone]},
	}, problems
}
