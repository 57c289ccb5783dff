// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// Types are those of all objects that are served.
var Types = clientset.Types()

// kind is one that is served.
type kind struct {
	schema.GroupVersionKind
	name       string // services
	namespaced bool
}

var kinds = []kind{
	{schema.GroupVersionKind{Version: "v1", Kind: "Service"}, "services", true},
	{schema.GroupVersionKind{Version: "v1", Kind: "Node"}, "nodes", false},
	{schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, "pods", true},
	{schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, "namespaces", false},
	{schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}, "endpointslices", true},
	{schema.GroupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "ServiceCIDR"}, "servicecidrs", false},
}

// base is the path of the kind's API group.
func (k kind) base() string {
	if k.Group == "" {
		return "/api/" + k.Version
	}
	return "/apis/" + k.Group + "/" + k.Version
}

// marshaler is what every type of the API is.
type marshaler interface {
	runtime.Object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

func (s *Server) tableOf(o runtime.Object) *table {
	gvks, _, err := Types.ObjectKinds(o)
	if err == nil {
		for _, t := range s.tables {
			if t.GroupVersionKind == gvks[0] {
				return t
			}
		}
	}
	panic(fmt.Sprintf("fakeapi: %T is not served", o))
}

// fieldsOf are what field selectors may name.
func (k kind) fieldsOf(o runtime.Object) fields.Set {
	m := o.(metav1.ObjectMetaAccessor).GetObjectMeta()
	set := fields.Set{"metadata.name": m.GetName()}
	if k.namespaced {
		set["metadata.namespace"] = m.GetNamespace()
	}
	switch o := o.(type) {
	case *corev1.Service:
		set["spec.clusterIP"], set["spec.type"] = o.Spec.ClusterIP, string(o.Spec.Type)
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = o.Spec.NodeName, string(o.Status.Phase)
	}
	return set
}

func compareStrings(a, b string) int { return cmp.Compare(a, b) }
