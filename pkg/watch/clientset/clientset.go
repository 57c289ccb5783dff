// SPDX-License-Identifier: Apache-2.0

// Package clientset makes the clients that pkg/watch asks API servers by, of client-go's.
package clientset

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// For makes a client of a configuration, without asking anybody yet.
func For(config *rest.Config) (kube.Client, error) {
	over, err := rest.HTTPClientFor(config) // one connection for both
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	whole, err := kubernetes.NewForConfigAndClient(config, over)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	light, err := metadata.NewForConfigAndClient(config, over)
	if err != nil {
		return nil, fmt.Errorf("make Kubernetes client: %w", err)
	}
	return Of(whole, light), nil
}

// Of joins a client of objects with one of their metadata, which may be nil.
func Of(whole kubernetes.Interface, light metadata.Interface) kube.Client {
	return client{whole, light}
}

type client struct {
	whole kubernetes.Interface
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

// IsWatchListSemanticsUnSupported asks the client of objects: client-go's fake one says so of itself.
func (c client) IsWatchListSemanticsUnSupported() bool {
	fake, says := c.whole.(interface{ IsWatchListSemanticsUnSupported() bool })
	return says && fake.IsWatchListSemanticsUnSupported()
}
