// SPDX-License-Identifier: Apache-2.0

// Package kube is what pkg/watch asks of an API server. Its clients are made by pkg/watch/clientset: client-go's clientset brings all types
// of Kubernetes into a program, 20 MB, which one that reads objects from files alone, as the plugin for kubectl, does without.
package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
)

// Lists lists and watches objects of a kind.
type Lists[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Objects gets one of them, too.
type Objects[O, L runtime.Object] interface {
	Lists[L]
	Get(ctx context.Context, name string, options metav1.GetOptions) (O, error)
}

// Client asks an API server. The namespace metav1.NamespaceAll stands for all of them.
type Client interface {
	Services(namespace string) Objects[*corev1.Service, *corev1.ServiceList]
	EndpointSlices(namespace string) Lists[*discoveryv1.EndpointSliceList]
	Nodes() Objects[*corev1.Node, *corev1.NodeList]
	ServiceCIDRs() Lists[*networkingv1.ServiceCIDRList]
	Namespaces() Lists[*corev1.NamespaceList]
	Pods(namespace string) Lists[*corev1.PodList]
	// Metadata reads objects of any namespace without what is in them; nil: this client can only read them whole.
	Metadata(schema.GroupVersionResource) Lists[*metav1.PartialObjectMetadataList]
	CreateEvent(context.Context, *corev1.Event) error
	// IsWatchListSemanticsUnSupported tells client-go that lists cannot be streamed, as those of a client in tests.
	IsWatchListSemanticsUnSupported() bool
}
