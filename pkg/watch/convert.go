// SPDX-License-Identifier: Apache-2.0

package watch

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// convert is the one way from an API object to what decides, whatever source it comes from. It serves as much of the object as can be
// served, and names the rest in problems: an API server has validated the object by its own rules, which may be newer than ours. What
// it returns is sound all the same: it trusts no text and no number. An object without a usable name is refused.
func convert(in runtime.Object) (object, *ObjectError) {
	switch in := in.(type) {
	case *corev1.Service:
		return convertService(in)
	case *discoveryv1.EndpointSlice:
		return convertSlice(in)
	case *corev1.Node:
		return convertNode(in)
	case *metav1.PartialObjectMetadata: // of a Node: nothing else is asked for like that
		return convertNode(&corev1.Node{ObjectMeta: in.ObjectMeta})
	case *networkingv1.ServiceCIDR:
		return convertServiceCIDR(in)
	}
	return object{}, &ObjectError{Problem: "no kind of object that is read here"}
}

// convertFile is convert for an object that nobody has validated yet: one that breaks a rule of the API server is refused.
// Endpoints that break one are problems of their slice. Defaults are written into the object.
func convertFile(in runtime.Object) (object, *ObjectError) {
	var key objectKey
	var errs field.ErrorList
	switch in := in.(type) {
	case *corev1.Service:
		defaultService(in)
		key, errs = objectKey{kindService, in.Namespace, in.Name}, validateService(in)
	case *discoveryv1beta1.EndpointSlice:
		return convertFile(fromV1beta1(in))
	case *discoveryv1.EndpointSlice:
		key, errs = objectKey{kindSlice, in.Namespace, in.Name}, validateSlice(in)
	case *corev1.Node:
		key, errs = objectKey{kindNode, "", in.Name}, validateMeta(&in.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	case *networkingv1.ServiceCIDR:
		key, errs = objectKey{kindServiceCIDR, "", in.Name}, validateServiceCIDR(in)
	}
	if err := refused(key, errs); err != nil {
		return object{key: key}, err
	}
	if slice, is := in.(*discoveryv1.EndpointSlice); is {
		return convertSliceOf(slice, true)
	}
	return convert(in)
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
