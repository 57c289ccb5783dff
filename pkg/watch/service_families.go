// SPDX-License-Identifier: Apache-2.0

package watch

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateClusterIPs checks clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy against each other
// (ValidateServiceClusterIPsRelatedFields). Fewer addresses than families is no error: the API server would allocate.
func validateClusterIPs(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	ips, list := path.Child("clusterIPs"), spec.ClusterIPs
	errs := validateFamilies(spec, path)
	switch {
	case len(list) == 0:
		return errs
	case spec.ClusterIP == "":
		return append(errs, field.Invalid(ips, list, "must be empty when clusterIP is not specified"))
	case list[0] != spec.ClusterIP:
		return append(errs, field.Invalid(ips.Index(0), list[0], "must be the same as clusterIP"))
	case spec.ClusterIP == corev1.ClusterIPNone:
		return append(errs, validateHeadless(spec, path)...)
	case len(list) > 2:
		return append(errs, field.TooMany(ips, len(list), 2))
	case len(list) == 2 && spec.IPFamilyPolicy != nil && *spec.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack:
		return append(errs, field.Invalid(path.Child("ipFamilyPolicy"), string(*spec.IPFamilyPolicy), "may not be SingleStack with two clusterIPs"))
	}
	for i, ip := range list {
		at := ips.Index(i)
		if len(list) == 1 {
			at = path.Child("clusterIP")
		}
		errs = append(errs, validateServiceIP(at, ip)...)
		errs = append(errs, validateFamilyOf(spec, i, at)...)
	}
	return errs
}

func validateHeadless(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	if len(spec.ClusterIPs) > 1 {
		errs = append(errs, field.Invalid(path.Child("clusterIPs"), spec.ClusterIPs, "only one may be given when it is None"))
	}
	if spec.Type != corev1.ServiceTypeClusterIP {
		errs = append(errs, field.Invalid(path.Child("clusterIP"), spec.ClusterIP, "may not be None for NodePort and LoadBalancer services"))
	}
	return errs
}

func validateFamilies(spec *corev1.ServiceSpec, path *field.Path) (errs field.ErrorList) {
	families := path.Child("ipFamilies")
	for i, family := range spec.IPFamilies {
		errs = append(errs, oneOf(families.Index(i), family, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if i > 0 && family == spec.IPFamilies[0] {
			errs = append(errs, field.Duplicate(families.Index(i), string(family)))
		}
	}
	if spec.IPFamilyPolicy != nil {
		errs = append(errs, oneOf(path.Child("ipFamilyPolicy"), *spec.IPFamilyPolicy, corev1.IPFamilyPolicySingleStack,
			corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack)...)
	}
	return errs
}

// validateFamilyOf pairs clusterIPs[i] with ipFamilies[i], and with the other address.
func validateFamilyOf(spec *corev1.ServiceSpec, i int, path *field.Path) (errs field.ErrorList) {
	addr, ok := parseAddr(spec.ClusterIPs[i])
	if !ok {
		return nil
	}
	if i < len(spec.IPFamilies) && (spec.IPFamilies[i] == corev1.IPv4Protocol) != addr.Is4() {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs[i], "must be of the family "+string(spec.IPFamilies[i])+" (ipFamilies)"))
	}
	if first, ok := parseAddr(spec.ClusterIPs[0]); i > 0 && ok && first.Is4() == addr.Is4() {
		errs = append(errs, field.Invalid(path, spec.ClusterIPs[i], "must be of the other family than the first"))
	}
	return errs
}
