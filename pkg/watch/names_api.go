// SPDX-License-Identifier: Apache-2.0

package watch

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// notOver selects the Pods whose addresses are theirs.
const notOver = "status.phase!=Succeeded,status.phase!=Failed,status.phase!=Unknown"

// nameResources are the kinds that names alone are made of: the metadata of Namespaces, and Pods where they are wanted.
func (c *cluster) nameResources() (all []resource) {
	if c.names == nil {
		return nil
	}
	if light := c.client.Metadata(corev1.SchemeGroupVersion.WithResource("namespaces")); light != nil {
		all = append(all, newResource(kindNamespace, &metav1.PartialObjectMetadata{}, light, metav1.ListOptions{}))
	} else {
		all = append(all, newResource(kindNamespace, &corev1.Namespace{}, c.client.Namespaces(), metav1.ListOptions{}))
	}
	if c.cfg.NamedPods {
		all = append(all, newResource(kindPod, &corev1.Pod{}, c.client.Pods(metav1.NamespaceAll), metav1.ListOptions{FieldSelector: notOver}))
	}
	return all
}

// convert is the package's, with what the object means for names where they are answered.
func (s *sink) convert(in runtime.Object) (object, *ObjectError) {
	switch s.kind {
	case kindNamespace:
		return convertNamespace(in)
	case kindPod:
		if pod, is := in.(*corev1.Pod); is {
			return convertNamedPod(pod)
		}
	}
	o, err := convert(in)
	if err != nil || s.names == nil {
		return o, err
	}
	namer{}.name(&o, in)
	return o, nil
}

// convertNamespace takes the object or its metadata.
func convertNamespace(in runtime.Object) (object, *ObjectError) {
	m, err := meta.Accessor(in)
	if err != nil {
		return object{}, &ObjectError{Problem: err.Error()}
	}
	o := object{key: objectKey{kindNamespace, "", m.GetName()}, naming: &naming{namespace: true}}
	return o, checkName(o.key, maxLabel, false)
}
