// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// fakeAPI is an HTTP server that speaks as much of the list and watch protocol as the source needs, with the faults
// of real ones at the press of a button. The client's whole stack (Reflector, REST client, HTTP) is the real one.
type fakeAPI struct {
	t      *testing.T
	addr   string
	server *httptest.Server

	mu        sync.Mutex
	changed   chan struct{} // closed at each change of what follows
	version   int
	objects   map[string]metav1.Object // by resource/namespace/name
	history   []event
	forgotten int // versions up to this one can no longer be watched from
	cut       int // watches begun before this count are ended
	requests  []string

	streaming bool                   // streaming lists are known
	refuse    map[string]http.Header // resource/verb that is forbidden
	hanging   chan struct{}          // not nil: nothing is answered until it is closed
}

type event struct {
	version  int
	resource string
	old, new metav1.Object // nil: was not there, is no more
}

func newFakeAPI(t *testing.T) *fakeAPI {
	api := &fakeAPI{t: t, changed: make(chan struct{}), objects: map[string]metav1.Object{}, refuse: map[string]http.Header{}, streaming: true, version: 100}
	api.start()
	t.Cleanup(api.stop)
	return api
}

func (a *fakeAPI) start() {
	addr := a.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", addr)
	require.NoError(a.t, err)
	a.addr = listener.Addr().String()
	a.server = &httptest.Server{Listener: listener, Config: &http.Server{Handler: a}}
	a.server.Start()
}

// stop takes the server away, with all its connections.
func (a *fakeAPI) stop() {
	if a.server == nil {
		return
	}
	a.closeWatches()
	a.server.CloseClientConnections()
	a.server.Close()
	a.server = nil
}

func (a *fakeAPI) url() string { return "http://" + a.addr }

// locked runs fn on the state and wakes the watches.
func (a *fakeAPI) locked(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *fakeAPI) closeWatches()  { a.locked(func() { a.cut = len(a.requests) + 1 }) }
func (a *fakeAPI) forgetHistory() { a.locked(func() { a.version++; a.forgotten = a.version }) }
func (a *fakeAPI) forbid(what string) {
	a.locked(func() { a.refuse[what] = nil })
}
func (a *fakeAPI) allow(what string) { a.locked(func() { delete(a.refuse, what) }) }

func (a *fakeAPI) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.requests)
}

func resourceOf(obj metav1.Object) string {
	switch obj.(type) {
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	}
	return "nodes"
}

func (a *fakeAPI) put(objs ...metav1.Object) {
	a.locked(func() {
		for _, obj := range objs {
			a.version++
			obj.SetResourceVersion(strconv.Itoa(a.version))
			id := resourceOf(obj) + "/" + obj.GetNamespace() + "/" + obj.GetName()
			a.history = append(a.history, event{a.version, resourceOf(obj), a.objects[id], obj})
			a.objects[id] = obj
		}
	})
}

func (a *fakeAPI) remove(objs ...metav1.Object) {
	a.locked(func() {
		for _, obj := range objs {
			a.version++
			id := resourceOf(obj) + "/" + obj.GetNamespace() + "/" + obj.GetName()
			a.history = append(a.history, event{a.version, resourceOf(obj), a.objects[id], nil})
			delete(a.objects, id)
		}
	})
}

// ServeHTTP implements [http.Handler].
func (a *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource, namespace := parts[len(parts)-1], ""
	if len(parts) > 3 && parts[len(parts)-3] == "namespaces" {
		namespace = parts[len(parts)-2]
	}
	verb := "list"
	if query.Get("watch") != "" {
		verb = "watch"
	}
	a.mu.Lock()
	a.requests = append(a.requests, strings.TrimSpace(verb+" "+r.URL.Path+" "+query.Get("labelSelector")))
	number, hanging := len(a.requests), a.hanging
	_, refused := a.refuse[resource+"/"+verb]
	a.mu.Unlock()

	if hanging != nil {
		select {
		case <-hanging:
		case <-r.Context().Done():
			return
		}
	}
	selector, err := labels.Parse(query.Get("labelSelector"))
	ask := request{resource: resource, namespace: namespace, selector: selector, number: number}
	as := map[string]string{"list": "as=PartialObjectMetadataList;", "watch": "as=PartialObjectMetadata;"}
	ask.metadataOnly = strings.HasPrefix(r.Header.Get("Accept"), "application/vnd.kubernetes.protobuf;"+as[verb])
	switch {
	case err != nil || r.Method != http.MethodGet || !slices.Contains([]string{"services", "endpointslices", "nodes"}, resource):
		a.status(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "what?")
	case refused:
		a.status(w, http.StatusForbidden, metav1.StatusReasonForbidden,
			fmt.Sprintf("%s is forbidden: User \"system:serviceaccount:x:y\" cannot %s resource %q", resource, verb, resource))
	case verb == "list":
		a.list(w, ask)
	case query.Get("sendInitialEvents") == "true" && !a.streaming:
		a.status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents is forbidden")
	default:
		from, _ := strconv.Atoi(query.Get("resourceVersion"))
		a.watch(w, r, ask, from, query.Get("sendInitialEvents") == "true")
	}
}

type request struct {
	resource, namespace string
	selector            labels.Selector
	metadataOnly        bool
	number              int
}

func (q *request) matches(obj metav1.Object) bool {
	return obj != nil && resourceOf(obj) == q.resource && (q.namespace == "" || q.namespace == obj.GetNamespace()) &&
		q.selector.Matches(labels.Set(obj.GetLabels()))
}

// render is the object as a server would send it.
func (q *request) render(obj metav1.Object) any {
	switch obj := obj.(type) {
	case *corev1.Service:
		obj = obj.DeepCopy()
		obj.APIVersion, obj.Kind = "v1", "Service"
		return obj
	case *discoveryv1.EndpointSlice:
		obj = obj.DeepCopy()
		obj.APIVersion, obj.Kind = "discovery.k8s.io/v1", "EndpointSlice"
		return obj
	}
	node := obj.(*corev1.Node)
	if !q.metadataOnly {
		panic("not the metadata of nodes was asked for, or a list of it in a watch")
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: node.ObjectMeta,
	}
}

func (a *fakeAPI) status(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(newStatus(code, reason, message))
}

func newStatus(code int, reason metav1.StatusReason, message string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

func (a *fakeAPI) list(w http.ResponseWriter, q request) {
	a.mu.Lock()
	items := []any{}
	for _, obj := range a.objects {
		if q.matches(obj) {
			items = append(items, q.render(obj))
		}
	}
	version := a.version
	a.mu.Unlock()
	apiVersion, listKind := "v1", map[string]string{"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "PartialObjectMetadataList"}[q.resource]
	switch q.resource {
	case "endpointslices":
		apiVersion = "discovery.k8s.io/v1"
	case "nodes":
		apiVersion = "meta.k8s.io/v1"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": apiVersion, "kind": listKind, "items": items,
		"metadata": map[string]string{"resourceVersion": strconv.Itoa(version)},
	})
}

func (a *fakeAPI) watch(w http.ResponseWriter, r *http.Request, q request, from int, initial bool) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	send := func(kind string, obj any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": obj})
		w.(http.Flusher).Flush()
	}
	w.(http.Flusher).Flush()

	a.mu.Lock()
	if initial {
		for _, obj := range a.objects {
			if q.matches(obj) {
				send("ADDED", q.render(obj))
			}
		}
		from = a.version
		send("BOOKMARK", q.bookmark(from))
	}
	for {
		changed, ended := a.changed, q.number < a.cut
		if ended {
			break
		}
		if from < a.forgotten {
			send("ERROR", newStatus(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
			break
		}
		for _, ev := range a.history {
			if ev.version <= from || ev.resource != q.resource {
				continue
			}
			from = ev.version
			a.sendEvent(send, q, ev)
		}
		a.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
	}
	a.mu.Unlock()
}

// sendEvent tells a watch of a change as far as its selection is concerned.
func (a *fakeAPI) sendEvent(send func(string, any), q request, ev event) {
	before, after := ev.old != nil && q.matches(ev.old), ev.new != nil && q.matches(ev.new)
	switch {
	case before && after:
		send("MODIFIED", q.render(ev.new))
	case after:
		send("ADDED", q.render(ev.new))
	case before:
		send("DELETED", q.render(ev.old))
	}
}

func (q *request) bookmark(version int) any {
	meta := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch q.resource {
	case "services":
		return q.render(&corev1.Service{ObjectMeta: meta})
	case "endpointslices":
		return q.render(&discoveryv1.EndpointSlice{ObjectMeta: meta})
	}
	return q.render(&corev1.Node{ObjectMeta: meta})
}
