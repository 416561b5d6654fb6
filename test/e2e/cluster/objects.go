// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The objects that a kubelet would otherwise make and report on.

// AddNode makes a Node in a zone ("": none).
func (c *Cluster) AddNode(ctx context.Context, name, zone string) error {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
	}
	if zone != "" {
		node.Labels[corev1.LabelTopologyZone] = zone
	}
	return c.Do(ctx, http.MethodPost, "/api/v1/nodes", node, nil)
}

// AddNamespace makes a Namespace; one that exists is fine.
func (c *Cluster) AddNamespace(ctx context.Context, name string) error {
	ns := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := c.Do(ctx, http.MethodPost, "/api/v1/namespaces", ns, nil)
	if status := (*StatusError)(nil); errors.As(err, &status) && status.Code == http.StatusConflict {
		return nil
	}
	return err
}

// Pod is a pod as the tests need it.
type Pod struct {
	Namespace, Name, Node string
	Labels                map[string]string
	IPs                   []string
	NotReady              bool
}

// AddPod makes a running Pod on a node.
func (c *Cluster) AddPod(ctx context.Context, p Pod) error {
	if len(p.IPs) == 0 {
		return fmt.Errorf("pod %s/%s: needs an address", p.Namespace, p.Name)
	}
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: maps.Clone(p.Labels)},
		Spec:       corev1.PodSpec{NodeName: p.Node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
	path := "/api/v1/namespaces/" + p.Namespace + "/pods"
	if err := c.Do(ctx, http.MethodPost, path, pod, nil); err != nil {
		return err
	}
	return c.SetPodStatus(ctx, p)
}

// SetPodStatus reports the pod's addresses and readiness, as its kubelet would.
func (c *Cluster) SetPodStatus(ctx context.Context, p Pod) error {
	ready := corev1.ConditionTrue
	if p.NotReady {
		ready = corev1.ConditionFalse
	}
	status := corev1.PodStatus{
		Phase:      corev1.PodRunning,
		PodIP:      p.IPs[0],
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
	}
	for _, ip := range p.IPs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	path := "/api/v1/namespaces/" + p.Namespace + "/pods/" + p.Name + "/status"
	return c.Do(ctx, http.MethodPatch, path, map[string]any{"status": status}, nil)
}

// DeletePod takes a Pod away at once, or starts its termination and leaves it there, as long as no kubelet confirms.
func (c *Cluster) DeletePod(ctx context.Context, namespace, name string, gracefully bool) error {
	path := "/api/v1/namespaces/" + namespace + "/pods/" + name
	if !gracefully {
		path += "?gracePeriodSeconds=0"
	}
	return c.Do(ctx, http.MethodDelete, path, nil, nil)
}

// Path is the path in the API of an object that a test names as kind and name, for the kinds that the tests change.
func Path(kind, namespace, name string) string {
	prefix := "/api/v1"
	if strings.EqualFold(kind, "endpointslices") {
		prefix = "/apis/discovery.k8s.io/v1"
	}
	return prefix + "/namespaces/" + namespace + "/" + kind + "/" + name
}
