// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// headerTimeout is how long the API server may take to begin an answer: its own limit for a request is a minute.
	headerTimeout = 70 * time.Second
	// listTimeout is how long a whole list may take.
	listTimeout = 3 * time.Minute
	// watchGrace is how long a watch may go on after the time at which the API server was told to end it.
	watchGrace = 30 * time.Second

	// Many Services without a selector make as many lists; these are the limits of kube-proxy's client and more
	// than a start needs otherwise.
	listsPerSecond, listsAtOnce = 50, 100

	protobufType, jsonType = "application/vnd.kubernetes.protobuf", "application/json"
)

// resource is one of the three resources that are read.
type resource struct {
	name    string // as in the URL and in RBAC rules
	group   schema.GroupVersion
	accept  accept
	object  runtime.Object
	newList func() runtime.Object
}

// accept is what is wanted as the answer to a list and to a watch. A server takes the first that it can make, and
// ends a watch for which that turns out to be a list.
type accept struct{ list, watch string }

func (r *resource) String() string {
	if r.group.Group == "" {
		return r.name
	}
	return r.name + "." + r.group.Group
}

// resources returns the three, in the order in which errors at the start are told.
func resources() (services, endpointSlices, nodes *resource) {
	whole := accept{list: encodedAs(""), watch: encodedAs("")}
	services = &resource{
		name: "services", group: corev1.SchemeGroupVersion, accept: whole,
		object: &corev1.Service{}, newList: func() runtime.Object { return &corev1.ServiceList{} },
	}
	endpointSlices = &resource{
		name: "endpointslices", group: discoveryv1.SchemeGroupVersion, accept: whole,
		object: &discoveryv1.EndpointSlice{}, newList: func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
	}
	// A Node is tens of kilobytes and its status changes all the time. Its metadata is what we need.
	nodes = &resource{
		name: "nodes", group: corev1.SchemeGroupVersion,
		accept: accept{
			list:  encodedAs(";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
			watch: encodedAs(";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"),
		},
		object: &metav1.PartialObjectMetadata{}, newList: func() runtime.Object { return &metav1.PartialObjectMetadataList{} },
	}
	return services, endpointSlices, nodes
}

// encodedAs prefers protobuf, and takes JSON from servers (or what stands before them) that do not have it.
func encodedAs(form string) string { return protobufType + form + "," + jsonType + form }

// client speaks to the API server. It knows the types of the three resources only, which is why it is small.
type client struct {
	host   string
	groups map[schema.GroupVersion]*rest.RESTClient
	codec  runtime.ParameterCodec
	// heard counts the answers of the API server, of whatever kind.
	heard atomic.Int64
}

// newClient reads the configuration, and the files it names, so that faults in them are known at once.
func newClient(c *Config) (*client, error) {
	config, err := restConfig(c)
	if err != nil {
		return nil, err
	}
	if _, err := rest.TLSConfigFor(config); err != nil {
		return nil, fmt.Errorf("TLS of the API server %s: %w", config.Host, err)
	}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	metav1.AddToGroupVersion(scheme, discoveryv1.SchemeGroupVersion)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}

	out := &client{host: config.Host, groups: map[schema.GroupVersion]*rest.RESTClient{}, codec: runtime.NewParameterCodec(scheme)}
	config.UserAgent = "kpng"
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(listsPerSecond, listsAtOnce)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = protobufType
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &transport{next: next, heard: &out.heard, timeout: headerTimeout}
	})
	for path, group := range map[string]schema.GroupVersion{"/api": corev1.SchemeGroupVersion, "/apis": discoveryv1.SchemeGroupVersion} {
		ofGroup := rest.CopyConfig(config)
		ofGroup.APIPath, ofGroup.GroupVersion = path, &group
		if out.groups[group], err = rest.RESTClientFor(ofGroup); err != nil {
			return nil, fmt.Errorf("client for the API server %s: %w", config.Host, err)
		}
	}
	return out, nil
}

// restConfig follows --kubeconfig, $KUBECONFIG, the pod's service account, in this order; --server overrides the
// address, and alone is enough for a server that wants no credentials.
func restConfig(c *Config) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}
	from := "--kubeconfig " + c.Kubeconfig
	if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); c.Kubeconfig == "" && env != "" {
		rules.Precedence = strings.Split(env, string(os.PathListSeparator))
		from = "$KUBECONFIG " + env
	} else if c.Kubeconfig == "" {
		return withoutKubeconfig(c.Server)
	}
	overrides := &clientcmd.ConfigOverrides{}
	overrides.ClusterInfo.Server = c.Server
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, oneLine(err))
	}
	return config, nil
}

func withoutKubeconfig(server string) (*rest.Config, error) {
	config, err := rest.InClusterConfig()
	switch {
	case err == nil && server != "":
		config.Host = server
		return config, nil
	case err == nil:
		return config, nil
	case !errors.Is(err, rest.ErrNotInCluster):
		return nil, fmt.Errorf("service account of the pod: %w", err)
	case server != "":
		return &rest.Config{Host: server}, nil
	}
	return nil, errors.New("which API server? give --kubeconfig, set $KUBECONFIG, give --server, or run in a pod with a service account")
}

func (c *client) request(r *resource, accept, namespace string, options *metav1.ListOptions) *rest.Request {
	// Retrying is the feed's: it reports each failure, and backs off with jitter.
	return c.groups[r.group].Get().MaxRetries(0).
		SetHeader("Accept", accept).
		NamespaceIfScoped(namespace, namespace != "").
		Resource(r.name).
		VersionedParams(options, c.codec)
}

func (c *client) list(ctx context.Context, r *resource, namespace string, options metav1.ListOptions) (runtime.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list := r.newList()
	if err := c.request(r, r.accept.list, namespace, &options).Do(ctx).Into(list); err != nil {
		return nil, err
	}
	return list, nil
}

func (c *client) watch(ctx context.Context, r *resource, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	limit := listTimeout
	if options.TimeoutSeconds != nil {
		limit = time.Duration(*options.TimeoutSeconds)*time.Second + watchGrace
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	var cause error
	w, err := c.request(r, r.accept.watch, namespace, &options).Watch(context.WithValue(ctx, causeKey{}, &cause))
	if err == nil && cause != nil {
		// client-go hides broken connections and timeouts behind a watch that ends at once.
		w.Stop()
		err = cause
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return &limitedWatch{Interface: w, cancel: cancel}, nil
}

// limitedWatch is a watch whose time limit ends with it.
type limitedWatch struct {
	watch.Interface
	cancel context.CancelFunc
}

func (w *limitedWatch) Stop() {
	w.Interface.Stop()
	w.cancel()
}

// causeKey is the context key of a *error in which the transport notes why a request failed.
type causeKey struct{}

var errNoAnswer = errors.New("no answer")

// transport notices servers that accept a request and then say nothing, also where there is no HTTP/2 whose pings
// would (client-go closes an HTTP/2 connection 45 s after the last sign of life).
type transport struct {
	next    http.RoundTripper
	heard   *atomic.Int64
	timeout time.Duration // until an answer begins
}

// RoundTrip implements [http.RoundTripper].
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	timer := time.AfterFunc(t.timeout, func() { cancel(errNoAnswer) })
	resp, err := t.next.RoundTrip(req.WithContext(ctx))
	timer.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			err = fmt.Errorf("%w within %s", errNoAnswer, t.timeout)
		}
		cancel(nil)
	} else {
		t.heard.Add(1)
		resp.Body = &cancelingBody{ReadCloser: resp.Body, cancel: cancel}
	}
	if cause, ok := req.Context().Value(causeKey{}).(*error); ok {
		*cause = err
	}
	return resp, err
}

// cancelingBody frees what belongs to a request when its answer has been read.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *cancelingBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
