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

// The longest names that the API has.
const (
	maxLabel     = 63  // of a DNS label (RFC 1035 2.3.4), or of a label's value
	maxSubdomain = 253 // of a DNS subdomain
)

// isName tells whether a text may be the name of an object, a port or a Node: it is printed, and kept by the programs. It is the
// part of the API server's rules that can be checked without a regular expression, which costs more than all the rest of a converter.
func isName(text string, longest int) bool {
	return isText(text, longest, func(c byte) bool {
		return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '.' && longest > maxLabel
	})
}

// isLabelValue tells likewise of a label's value, as a zone's name; empty is none.
func isLabelValue(text string) bool {
	return isText(text, maxLabel, func(c byte) bool {
		return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.'
	})
}

func isText(text string, longest int, may func(byte) bool) bool {
	for i := range len(text) {
		if !may(text[i]) {
			return false
		}
	}
	return text != "" && len(text) <= longest
}

// checkName refuses an object whose name, or namespace if it has one, is none.
func checkName(key objectKey, longest int, namespaced bool) *ObjectError {
	switch {
	case !isName(key.name, longest):
		return &ObjectError{Object: key.String(), Field: "metadata.name", Value: shown(key.name), Problem: "is no name of a " + string(key.kind)}
	case namespaced && !isName(key.namespace, maxLabel):
		return &ObjectError{Object: key.String(), Field: "metadata.namespace", Value: shown(key.namespace), Problem: "is no name of a namespace"}
	}
	return nil
}

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
