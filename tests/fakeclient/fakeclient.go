// SPDX-License-Identifier: Apache-2.0

// Package fakeclient is client-go's fake clientset of the groups that nearlb asks for: with those of all others the race detector's suites
// would compile for twice as long.
package fakeclient

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// Clientset answers from its tracker, unless a reactor does.
type Clientset struct {
	testing.Fake
	tracker testing.ObjectTracker
}

// NewClientset makes one that has these objects.
func NewClientset(objects ...runtime.Object) *Clientset {
	types := clientset.Types()
	c := &Clientset{tracker: testing.NewObjectTracker(types, serializer.NewCodecFactory(types).UniversalDecoder())}
	for _, o := range objects {
		if err := c.tracker.Add(o); err != nil {
			panic(err)
		}
	}
	c.AddReactor("*", "*", testing.ObjectReaction(c.tracker))
	c.AddWatchReactor("*", func(action testing.Action) (bool, watch.Interface, error) {
		var options metav1.ListOptions
		if asked, ok := action.(testing.WatchActionImpl); ok {
			options = asked.ListOptions
		}
		events, err := c.tracker.Watch(action.GetResource(), action.GetNamespace(), options)
		return err == nil, events, err
	})
	return c
}

// Tracker has the objects.
func (c *Clientset) Tracker() testing.ObjectTracker { return c.tracker }

// CoreV1 are the clients of the core group, as client-go calls them.
func (c *Clientset) CoreV1() CoreV1 { return CoreV1{&c.Fake} }

// DiscoveryV1 are those of discovery.k8s.io.
func (c *Clientset) DiscoveryV1() DiscoveryV1 { return DiscoveryV1{&c.Fake} }

// NetworkingV1 are those of networking.k8s.io.
func (c *Clientset) NetworkingV1() NetworkingV1 { return NetworkingV1{&c.Fake} }

type (
	CoreV1       struct{ fake *testing.Fake }
	DiscoveryV1  struct{ fake *testing.Fake }
	NetworkingV1 struct{ fake *testing.Fake }
)

// objects are those of one kind.
func objects[O, L any, PO interface {
	*O
	runtime.Object
	metav1.Object
}, PL interface {
	*L
	runtime.Object
	metav1.ListInterface
}](fake *testing.Fake, version schema.GroupVersion, kind, resource, namespace string, items func(PL) *[]O) *gentype.FakeClientWithList[PO, PL] {
	return gentype.NewFakeClientWithList(fake, namespace, version.WithResource(resource), version.WithKind(kind),
		func() PO { return new(O) }, func() PL { return new(L) },
		func(to, from PL) {
			to.SetResourceVersion(from.GetResourceVersion())
			to.SetContinue(from.GetContinue())
			to.SetRemainingItemCount(from.GetRemainingItemCount())
		},
		func(list PL) (all []PO) {
			for i := range *items(list) {
				all = append(all, &(*items(list))[i])
			}
			return all
		},
		func(list PL, all []PO) {
			*items(list) = nil
			for _, o := range all {
				*items(list) = append(*items(list), *o)
			}
		})
}

func (c CoreV1) Services(namespace string) *gentype.FakeClientWithList[*corev1.Service, *corev1.ServiceList] {
	return objects(c.fake, corev1.SchemeGroupVersion, "Service", "services", namespace, func(l *corev1.ServiceList) *[]corev1.Service { return &l.Items })
}

func (c CoreV1) Nodes() *gentype.FakeClientWithList[*corev1.Node, *corev1.NodeList] {
	return objects(c.fake, corev1.SchemeGroupVersion, "Node", "nodes", "", func(l *corev1.NodeList) *[]corev1.Node { return &l.Items })
}

func (c CoreV1) Namespaces() *gentype.FakeClientWithList[*corev1.Namespace, *corev1.NamespaceList] {
	return objects(c.fake, corev1.SchemeGroupVersion, "Namespace", "namespaces", "", func(l *corev1.NamespaceList) *[]corev1.Namespace { return &l.Items })
}

func (c CoreV1) Pods(namespace string) *gentype.FakeClientWithList[*corev1.Pod, *corev1.PodList] {
	return objects(c.fake, corev1.SchemeGroupVersion, "Pod", "pods", namespace, func(l *corev1.PodList) *[]corev1.Pod { return &l.Items })
}

func (c CoreV1) Events(namespace string) *gentype.FakeClientWithList[*corev1.Event, *corev1.EventList] {
	return objects(c.fake, corev1.SchemeGroupVersion, "Event", "events", namespace, func(l *corev1.EventList) *[]corev1.Event { return &l.Items })
}

func (c DiscoveryV1) EndpointSlices(namespace string) *gentype.FakeClientWithList[*discoveryv1.EndpointSlice, *discoveryv1.EndpointSliceList] {
	return objects(c.fake, discoveryv1.SchemeGroupVersion, "EndpointSlice", "endpointslices", namespace,
		func(l *discoveryv1.EndpointSliceList) *[]discoveryv1.EndpointSlice { return &l.Items })
}

func (c NetworkingV1) ServiceCIDRs() *gentype.FakeClientWithList[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList] {
	return objects(c.fake, networkingv1.SchemeGroupVersion, "ServiceCIDR", "servicecidrs", "",
		func(l *networkingv1.ServiceCIDRList) *[]networkingv1.ServiceCIDR { return &l.Items })
}

// Client is what pkg/watch asks. light, which may be nil, has metadata.
func (c *Clientset) Client(light metadata.Interface) kube.Client { return client{c, light} }

type client struct {
	whole *Clientset
	light metadata.Interface
}

func (c client) Services(namespace string) kube.Objects[*corev1.Service, *corev1.ServiceList] {
	return c.whole.CoreV1().Services(namespace)
}

func (c client) EndpointSlices(namespace string) kube.Lists[*discoveryv1.EndpointSliceList] {
	return c.whole.DiscoveryV1().EndpointSlices(namespace)
}

func (c client) Nodes() kube.Objects[*corev1.Node, *corev1.NodeList] { return c.whole.CoreV1().Nodes() }

func (c client) ServiceCIDRs() kube.Lists[*networkingv1.ServiceCIDRList] {
	return c.whole.NetworkingV1().ServiceCIDRs()
}

func (c client) Namespaces() kube.Lists[*corev1.NamespaceList] { return c.whole.CoreV1().Namespaces() }

func (c client) Pods(namespace string) kube.Lists[*corev1.PodList] {
	return c.whole.CoreV1().Pods(namespace)
}

func (c client) Metadata(resource schema.GroupVersionResource) kube.Lists[*metav1.PartialObjectMetadataList] {
	if c.light == nil {
		return nil
	}
	return c.light.Resource(resource)
}

func (c client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	_, err := c.whole.CoreV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	return err
}

// IsWatchListSemanticsUnSupported: the tracker's watches begin without what is there.
func (client) IsWatchListSemanticsUnSupported() bool { return true }
