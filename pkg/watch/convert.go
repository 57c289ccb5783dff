// SPDX-License-Identifier: Apache-2.0

package watch

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
)

// convert is the one way from an API object to what decides, whatever source it comes from.
func convert(in runtime.Object) (object, *ObjectError) {
	switch in := in.(type) {
	case *corev1.Service:
		return convertService(in)
	case *discoveryv1.EndpointSlice:
		return convertSlice(in)
	case *discoveryv1beta1.EndpointSlice:
		return convertSlice(fromV1beta1(in))
	case *corev1.Node:
		return convertNode(in)
	case *networkingv1.ServiceCIDR:
		return convertServiceCIDR(in)
	}
	return object{}, &ObjectError{Problem: "no kind of object that is read here"}
}

// newScheme knows the types that convert reads.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for version, types := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:           {&corev1.Service{}, &corev1.Node{}},
		discoveryv1.SchemeGroupVersion:      {&discoveryv1.EndpointSlice{}},
		discoveryv1beta1.SchemeGroupVersion: {&discoveryv1beta1.EndpointSlice{}},
		networkingv1.SchemeGroupVersion:     {&networkingv1.ServiceCIDR{}},
	} {
		scheme.AddKnownTypes(version, types...)
	}
	return scheme
}

// newDecoder reads JSON strictly: an unknown or repeated field comes back as a strict decoding error beside the object.
func newDecoder(scheme *runtime.Scheme) runtime.Decoder {
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Strict: true})
}
