// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateMeta checks metadata as the API server does. managedFields are its own and not looked at.
func validateMeta(meta *metav1.ObjectMeta, namespaced bool, name apivalidation.ValidateNameFunc) field.ErrorList {
	light := *meta
	light.ManagedFields = nil
	return apivalidation.ValidateObjectMeta(&light, namespaced, name, field.NewPath("metadata"))
}

// invalid makes a list of the messages of apimachinery's checks.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, message := range messages {
		errs = append(errs, field.Invalid(path, value, message))
	}
	return errs
}

// oneOf allows the given values only.
func oneOf[T ~string](path *field.Path, value T, allowed ...T) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	if value == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	return field.ErrorList{field.NotSupported(path, string(value), allowed)}
}

func validateProtocol(path *field.Path, protocol corev1.Protocol) field.ErrorList {
	return oneOf(path, protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
}

func validateAppProtocol(path *field.Path, protocol *string) field.ErrorList {
	if protocol == nil {
		return nil
	}
	return invalid(path, *protocol, validation.IsQualifiedName(*protocol))
}
