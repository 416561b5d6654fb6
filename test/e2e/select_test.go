// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// web is a Service with a selector; the controller makes its slices and copies its labels to them.
const web = `
apiVersion: v1
kind: Service
metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: "{proxy}"}}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
`

const webState = `
	{ns}/web headless http:80/TCP>8080
	- 10.1.0.1 here
	- 10.2.0.1`

func (s *scene) webPods() {
	s.pod("web-here", nodeA, "10.1.0.1")
	s.pod("web-there", nodeB, "10.2.0.1")
}

func TestLabelAddedAndRemovedOnALiveService(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(strings.ReplaceAll(web, "{proxy}", "someone-else"))
	s.slices("web", 2)
	k := s.kube()
	s.wantState(k.API, nodeA, ``)

	const label = "service.kubernetes.io/service-proxy-name"
	for range 2 {
		s.kubectl("label", "--overwrite", "service", "web", label+"="+s.proxyName)
		s.wantState(k.API, nodeA, webState)
		s.kubectl("label", "service", "web", label+"-")
		s.wantState(k.API, nodeA, ``)
	}
	s.kubectl("label", "service", "web", label+"="+s.proxyName)
	s.wantState(k.API, nodeA, webState)
	s.wantState(k.API, nodeB, `
		{ns}/web headless http:80/TCP>8080
		- 10.1.0.1
		- 10.2.0.1 here`)
	s.wantState(k.API, "a-node-that-is-not-there", `
		{ns}/web headless http:80/TCP>8080
		- 10.1.0.1
		- 10.2.0.1`)
	s.kubectl("delete", "service", "web")
	s.wantState(k.API, nodeA, ``)
}

func TestEndpointsFollowThePods(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.apply(web)
	s.wantState(k.API, nodeA, `{ns}/web headless http:80/TCP>8080`)
	s.webPods()
	s.wantState(k.API, nodeA, webState)

	there := s.podSpec("web-there", nodeB, "10.2.0.1")
	there.NotReady = true
	require.NoError(t, k8s.SetPodStatus(t.Context(), there))
	s.wantState(k.API, nodeA, `
		{ns}/web headless http:80/TCP>8080
		- 10.1.0.1 here`)

	// The last ready endpoint terminates, and serves on.
	require.NoError(t, k8s.DeletePod(t.Context(), s.namespace, "web-there", false))
	require.NoError(t, k8s.DeletePod(t.Context(), s.namespace, "web-here", true))
	s.slices("web", 1)
	s.wantState(k.API, nodeA, `
		{ns}/web headless http:80/TCP>8080
		- 10.1.0.1 here`)
	require.NoError(t, k8s.DeletePod(t.Context(), s.namespace, "web-here", false))
	s.wantState(k.API, nodeA, `{ns}/web headless http:80/TCP>8080`)
}

func TestDualStack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.pod("web-here", nodeA, "10.1.0.1", "fd01::1")
	s.pod("web-there", nodeB, "10.2.0.1", "fd02::1")
	s.apply(`
apiVersion: v1
kind: Service
metadata: {name: web, labels: {service.kubernetes.io/service-proxy-name: "{proxy}"}}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {app: web}
  externalIPs: ["192.0.2.7", "2001:db8::7"]
  ports: [{name: http, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}]
`)
	s.wantState(k.API, nodeA, `
		{ns}/web clusterIPs=1+1 external=192.0.2.7,2001:db8::7 http:80/TCP>8080 dns:53/UDP>53
		- 10.1.0.1 here
		- 10.2.0.1
		- fd01::1 here
		- fd02::1`)
	// Down to one family.
	s.kubectl("patch", "service", "web", "--type=merge", "-p", `{"spec":{"ipFamilyPolicy":"SingleStack","ipFamilies":["IPv4"],"externalIPs":["192.0.2.7"]}}`)
	s.wantState(k.API, nodeA, `
		{ns}/web clusterIPs=1+0 external=192.0.2.7 http:80/TCP>8080 dns:53/UDP>53
		- 10.1.0.1 here
		- 10.2.0.1`)
}

// byHand is a Service without a selector, and byHandSlice a slice for it that a user wrote: nothing copies the
// Service's labels to it.
const byHand = `
apiVersion: v1
kind: Service
metadata: {name: hand, labels: {service.kubernetes.io/service-proxy-name: "{proxy}"}}
spec: {clusterIP: None, ports: [{name: db, port: 5432}]}
`

const byHandSlice = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-1, labels: {kubernetes.io/service-name: hand}}
addressType: IPv4
ports: [{name: db, port: 5432}]
endpoints: [{addresses: [10.9.0.1], conditions: {ready: true}, nodeName: "{nodeA}"}]
`

const byHandState = `
	{ns}/hand headless db:5432/TCP>5432
	- 10.9.0.1 here`

func TestSelectorlessServiceAndHandWrittenSlices(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{
		"service first": {byHand, byHandSlice},
		"slice first":   {byHandSlice, byHand},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &scene{t: t, namespace: "hand-" + strings.Fields(name)[0], proxyName: "hand-" + strings.Fields(name)[0]}
			require.NoError(t, k8s.AddNamespace(t.Context(), s.namespace))
			k := s.kube()
			s.wantState(k.API, nodeA, ``)
			for _, manifest := range order {
				s.apply(manifest)
			}
			s.wantState(k.API, nodeA, byHandState)

			// The endpoints change, then the slice goes.
			s.apply(strings.ReplaceAll(byHandSlice, "10.9.0.1", "10.9.0.2"))
			s.wantState(k.API, nodeA, strings.ReplaceAll(byHandState, "10.9.0.1", "10.9.0.2"))
			s.kubectl("delete", "endpointslice", "hand-1")
			s.wantState(k.API, nodeA, `{ns}/hand headless db:5432/TCP>5432`)
			s.apply(byHandSlice)
			s.wantState(k.API, nodeA, byHandState)

			// kpng started when all is there already.
			s.wantState(s.kube().API, nodeA, byHandState)
		})
	}
}

func TestServiceGainsAndLosesItsSelector(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.pod("hand-pod", nodeB, "10.2.0.9")
	s.apply(byHand + "\n---\n" + byHandSlice)
	s.wantState(k.API, nodeA, byHandState)

	// With a selector, the controller adds its slice, labelled; the hand-written one is the Service's as before.
	s.kubectl("patch", "service", "hand", "--type=merge", "-p", `{"spec":{"selector":{"app":"hand"}}}`)
	s.slices("hand", 2)
	eventually(t, func() error {
		got, err := state(t, k.API, nodeA)
		if err == nil && !strings.Contains(got, "- 10.2.0.9") {
			t.Logf("waiting for the controller's endpoint in:\n%s", got)
			return errNotYet
		}
		return err
	})

	// Without it, the controller leaves its slice behind, and the hand-written one counts (again).
	s.kubectl("patch", "service", "hand", "--type=merge", "-p", `{"spec":{"selector":null}}`)
	s.wantState(k.API, nodeA, `
		{ns}/hand headless db:5432/TCP>5432
		- 10.2.0.9
		- 10.9.0.1 here`)
	// The label leaves the selectorless Service, and comes back.
	s.kubectl("label", "service", "hand", "service.kubernetes.io/service-proxy-name-")
	s.wantState(k.API, nodeA, ``)
	s.apply(byHand)
	s.wantState(k.API, nodeA, `
		{ns}/hand headless db:5432/TCP>5432
		- 10.2.0.9
		- 10.9.0.1 here`)
}

// TestNothingMatches: the first Sync comes as soon as kpng knows that there is nothing.
func TestNothingMatches(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.wantState(k.API, nodeA, ``)
	require.NoError(t, k.ready(t.Context()))
}

func TestOtherProxyNamesAreIgnored(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.webPods()
	s.apply(web)
	s.apply(strings.NewReplacer("{proxy}", "{proxy}-2", "name: web", "name: other").Replace(web))
	s.apply(strings.NewReplacer(`labels: {service.kubernetes.io/service-proxy-name: "{proxy}"}`, "labels: {}", "name: web", "name: plain").Replace(web))
	s.slices("other", 2)
	s.slices("plain", 2)
	s.wantState(k.API, nodeA, webState)
}

func TestWithoutTheFlag(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.webPods()
	s.apply(web)
	s.apply(strings.NewReplacer(`labels: {service.kubernetes.io/service-proxy-name: "{proxy}"}`, "labels: {}", "name: web", "name: plain").Replace(web))
	s.slices("web", 2)
	s.slices("plain", 2)
	k := kpng(t, "kube", "--kubeconfig", k8s.Kubeconfig)
	eventually(t, func() error {
		got, err := state(t, k.API, nodeA)
		if err != nil {
			return err
		}
		require.NotContains(t, got, s.namespace+"/web ")
		if !strings.Contains(got, dedent(s.expand(strings.ReplaceAll(webState, "/web", "/plain")))) {
			return errNotYet
		}
		require.Contains(t, got, "default/kubernetes ", "the API server's own Service")
		return nil
	})
}

// TestBadObjects: what the API server lets through must not stop anything.
func TestBadObjects(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	k := s.kube()
	s.apply(byHand)
	s.apply(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-noport, labels: {kubernetes.io/service-name: hand}}
addressType: IPv4
ports: [{}]
endpoints: [{addresses: [10.9.0.7], nodeName: "{nodeA}"}, {addresses: [10.9.0.7]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-fqdn, labels: {kubernetes.io/service-name: hand}}
addressType: FQDN
ports: [{name: db, port: 5432}]
endpoints: [{addresses: [db.example.com]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hand-noservice, labels: {kubernetes.io/service-name: ""}}
addressType: IPv4
ports: []
endpoints: [{addresses: [10.9.0.8]}]
`)
	s.apply(byHandSlice)
	eventually(t, func() error {
		got, err := state(t, k.API, nodeA)
		if err == nil && !strings.Contains(got, "- 10.9.0.1 here") {
			return errNotYet
		}
		require.NotContains(t, got, "example.com")
		require.NotContains(t, got, "10.9.0.8")
		return err
	})
	require.True(t, k.Running())

	// A slice that moves to another service.
	s.apply(strings.NewReplacer("name: hand", "name: hand2").Replace(byHand))
	s.apply(strings.ReplaceAll(byHandSlice, "service-name: hand", "service-name: hand2"))
	eventually(t, func() error {
		got, err := state(t, k.API, nodeA)
		if err == nil && !strings.Contains(got, dedent(s.expand(strings.ReplaceAll(byHandState, "/hand", "/hand2")))) {
			return errNotYet
		}
		return err
	})
}
