// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// node is a Node after the converter.
type node struct {
	zone, region string
	addresses    []netip.Addr // InternalIP before ExternalIP, as listed
	leaving      bool         // about to be deleted
	labels       nodeLabels
	problems     []lb.Problem
}

// serviceCIDR is a ServiceCIDR after the converter.
type serviceCIDR struct {
	prefixes []netip.Prefix
}

// convertNode takes the labels and the addresses of a Node, and whether it stays; nothing else.
func convertNode(in *corev1.Node) (object, *ObjectError) {
	o := object{key: objectKey{kindNode, "", in.Name}}
	if err := refused(o.key, validateMeta(&in.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)); err != nil {
		return o, err
	}
	o.node = &node{zone: in.Labels[corev1.LabelTopologyZone], region: in.Labels[corev1.LabelTopologyRegion],
		leaving: isLeaving(in), labels: newNodeLabels(in.Labels)}
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		o.node.add(o.key, in.Status.Addresses, kind)
	}
	o.node.addresses = unique(o.node.addresses)
	return o, nil
}

func (n *node) add(key objectKey, addresses []corev1.NodeAddress, kind corev1.NodeAddressType) {
	for i, a := range addresses {
		if a.Type != kind {
			continue
		}
		addr, ok := parseAddr(a.Address)
		if !ok || addr.IsUnspecified() {
			path := field.NewPath("status", "addresses").Index(i).Child("address")
			n.problems = append(n.problems, problem(key, field.Invalid(path, a.Address, "must be a valid IP address")))
			continue
		}
		n.addresses = append(n.addresses, addr)
	}
}

// convertServiceCIDR takes the ranges of a ServiceCIDR.
func convertServiceCIDR(in *networkingv1.ServiceCIDR) (object, *ObjectError) {
	o := object{key: objectKey{kindServiceCIDR, "", in.Name}, cidrs: &serviceCIDR{}}
	errs := validateMeta(&in.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	path := field.NewPath("spec", "cidrs")
	if len(in.Spec.CIDRs) == 0 {
		errs = append(errs, field.Required(path, "at least one CIDR required"))
	}
	for i, s := range in.Spec.CIDRs {
		prefix, ok := parsePrefix(s)
		if !ok {
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a valid CIDR"))
			continue
		}
		o.cidrs.prefixes = append(o.cidrs.prefixes, prefix)
	}
	return o, refused(o.key, errs)
}
