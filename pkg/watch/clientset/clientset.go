// SPDX-License-Identifier: Apache-2.0

// Package clientset makes the clients that pkg/watch asks API servers by, of client-go's REST clients: its clientset would bring the types of
// all other groups into the program, and its generic clients what is for tests.
package clientset

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// For makes a client of a configuration, without asking anybody yet.
func For(config *rest.Config) (kube.Client, error) {
	c, err := clientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return c, nil
}

// Types are those of the groups whose objects such a client reads and writes.
func Types() *runtime.Scheme {
	types, groups := runtime.NewScheme(), runtime.NewSchemeBuilder(corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme)
	utilruntime.Must(groups.AddToScheme(types))
	return types
}

// client asks by one REST client for each group.
type client struct {
	core, discovery, networking rest.Interface
	light                       metadata.Interface
	parameters                  runtime.ParameterCodec
}

func clientFor(config *rest.Config) (c client, err error) {
	types := Types()
	codecs := rest.CodecFactoryForGeneratedClient(types, serializer.NewCodecFactory(types)).WithoutConversion()
	over, err := rest.HTTPClientFor(config) // one connection for all
	if err != nil {
		return c, err
	}
	group := func(version schema.GroupVersion, path string) rest.Interface {
		own := *config
		own.GroupVersion, own.APIPath = &version, path
		own.NegotiatedSerializer = codecs
		if own.UserAgent == "" {
			own.UserAgent = rest.DefaultKubernetesUserAgent()
		}
		made, e := rest.RESTClientForConfigAndClient(&own, over)
		if e != nil {
			err = e
		}
		return made
	}
	c.parameters = runtime.NewParameterCodec(types)
	c.core = group(corev1.SchemeGroupVersion, "/api")
	c.discovery, c.networking = group(discoveryv1.SchemeGroupVersion, "/apis"), group(networkingv1.SchemeGroupVersion, "/apis")
	if err != nil {
		return c, err
	}
	c.light, err = metadata.NewForConfigAndClient(config, over)
	return c, err
}

// objects are those of one kind, in a namespace or in all; what has no namespace is in "".
type objects[O, L runtime.Object] struct {
	group               rest.Interface
	parameters          runtime.ParameterCodec
	resource, namespace string
	object              func() O // an empty one
	list                func() L
}

func of[O, L any, PO interface {
	*O
	runtime.Object
}, PL interface {
	*L
	runtime.Object
}](c client, group rest.Interface, resource, namespace string) objects[PO, PL] {
	return objects[PO, PL]{group, c.parameters, resource, namespace, func() PO { return new(O) }, func() PL { return new(L) }}
}

func (o objects[O, L]) request(options runtime.Object) *rest.Request {
	return o.group.Get().UseProtobufAsDefaultIfPreferred(true).NamespaceIfScoped(o.namespace, o.namespace != "").
		Resource(o.resource).VersionedParams(options, o.parameters)
}

func (o objects[O, L]) Get(ctx context.Context, name string, options metav1.GetOptions) (O, error) {
	object := o.object()
	err := o.request(&options).Name(name).Do(ctx).Into(object)
	return object, err
}

func (o objects[O, L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	list := o.list()
	err := o.request(&options).Timeout(timeout(options)).Do(ctx).Into(list)
	return list, err
}

func (o objects[O, L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return o.request(&options).Timeout(timeout(options)).Watch(ctx)
}

// timeout is what a server is asked to end an answer after.
func timeout(options metav1.ListOptions) time.Duration {
	if options.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*options.TimeoutSeconds) * time.Second
}

func (c client) Services(namespace string) kube.Objects[*corev1.Service, *corev1.ServiceList] {
	return of[corev1.Service, corev1.ServiceList](c, c.core, "services", namespace)
}

func (c client) EndpointSlices(namespace string) kube.Lists[*discoveryv1.EndpointSliceList] {
	return of[discoveryv1.EndpointSlice, discoveryv1.EndpointSliceList](c, c.discovery, "endpointslices", namespace)
}

func (c client) Nodes() kube.Objects[*corev1.Node, *corev1.NodeList] {
	return of[corev1.Node, corev1.NodeList](c, c.core, "nodes", metav1.NamespaceNone)
}

func (c client) ServiceCIDRs() kube.Lists[*networkingv1.ServiceCIDRList] {
	return of[networkingv1.ServiceCIDR, networkingv1.ServiceCIDRList](c, c.networking, "servicecidrs", metav1.NamespaceNone)
}

func (c client) Namespaces() kube.Lists[*corev1.NamespaceList] {
	return of[corev1.Namespace, corev1.NamespaceList](c, c.core, "namespaces", metav1.NamespaceNone)
}

func (c client) Pods(namespace string) kube.Lists[*corev1.PodList] {
	return of[corev1.Pod, corev1.PodList](c, c.core, "pods", namespace)
}

func (c client) Metadata(resource schema.GroupVersionResource) kube.Lists[*metav1.PartialObjectMetadataList] {
	return c.light.Resource(resource)
}

func (c client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	return c.core.Post().UseProtobufAsDefaultIfPreferred(true).Namespace(e.Namespace).Resource("events").Body(e).Do(ctx).Error()
}

func (client) IsWatchListSemanticsUnSupported() bool { return false }
