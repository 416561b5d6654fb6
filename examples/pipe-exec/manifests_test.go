// SPDX-License-Identifier: Apache-2.0

package pipeexec_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"
)

// decode reads the documents of a manifest into objs, strictly. (That the API server takes them is a test in test/e2e.)
func decode(t *testing.T, file string, objs ...any) {
	t.Helper()
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	defer documents.Close()
	buf := make([]byte, 1<<20)
	for _, obj := range objs {
		n, err := documents.Read(buf)
		require.NoError(t, err)
		require.NoError(t, sigsyaml.UnmarshalStrict(buf[:n], obj), "%T", obj)
	}
	_, err = documents.Read(buf)
	require.True(t, errors.Is(err, io.EOF), "more documents than expected")
}

func TestAppManifest(t *testing.T) {
	var service corev1.Service
	var pods appsv1.DaemonSet
	decode(t, "manifests/kpng-example-app.yaml", &service, &pods)

	dual := corev1.IPFamilyPolicyRequireDualStack
	require.Equal(t, corev1.ServiceSpec{
		ClusterIP: "None", IPFamilyPolicy: &dual, ExternalIPs: []string{"10.0.0.55", "1000::55"},
		Selector: map[string]string{"app": "kpng-alpine"}, Ports: []corev1.ServicePort{{Port: 6000}},
	}, service.Spec)
	require.Equal(t, "kpng-example", service.Name)
	require.Equal(t, map[string]string{"service.kubernetes.io/service-proxy-name": "kpng-example"}, service.Labels)

	require.True(t, labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pods.Spec.Template.Labels)))
	require.Equal(t, pods.Spec.Selector.MatchLabels, pods.Spec.Template.Labels)
	require.Equal(t, service.Spec.Ports[0].Port, pods.Spec.Template.Spec.Containers[0].Ports[0].ContainerPort)
}

func TestProxyManifest(t *testing.T) {
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	var set appsv1.DaemonSet
	decode(t, "manifests/kpng-example-proxy.yaml", &account, &role, &binding, &set)

	require.Equal(t, []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"services", "nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"list", "watch"}},
	}, role.Rules)
	require.Equal(t, role.Name, binding.RoleRef.Name)
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}, binding.Subjects)
	pod := set.Spec.Template.Spec
	require.Equal(t, account.Name, pod.ServiceAccountName)
	require.Equal(t, account.Namespace, set.Namespace)
	require.Equal(t, set.Spec.Selector.MatchLabels, set.Spec.Template.Labels)
	require.True(t, pod.HostNetwork)

	may := map[string][]corev1.Capability{"callout": {"NET_ADMIN", "NET_RAW"}}
	volumes := map[string]bool{}
	for _, volume := range pod.Volumes {
		volumes[volume.Name] = true
	}
	for _, container := range pod.Containers {
		security := container.SecurityContext
		require.Equal(t, []corev1.Capability{"ALL"}, security.Capabilities.Drop)
		require.Equal(t, may[container.Name], security.Capabilities.Add)
		require.Nil(t, security.Privileged)
		require.False(t, *security.AllowPrivilegeEscalation)
		require.True(t, *security.ReadOnlyRootFilesystem)
		for _, mount := range container.VolumeMounts {
			require.True(t, volumes[mount.Name], mount.Name)
			if mount.Name == "token" {
				require.Equal(t, "kpng", container.Name, "the token is for kpng alone")
			}
		}
	}
}
