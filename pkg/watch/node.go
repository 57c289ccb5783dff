// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
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
	processors   uint64       // thousandths that clients may use; 0: of a Node that runs none, or that says nothing
	labels       nodeLabels
	problems     []lb.Problem
}

// serviceCIDR is a ServiceCIDR after the converter.
type serviceCIDR struct {
	prefixes []netip.Prefix
	problems []lb.Problem
}

// convertNode takes the labels and the addresses of a Node, and whether it stays; nothing else.
func convertNode(in *corev1.Node) (object, *ObjectError) {
	o := object{key: objectKey{kindNode, "", in.Name}}
	if err := checkName(o.key, maxSubdomain, false); err != nil {
		return o, err
	}
	o.node = &node{leaving: isLeaving(in), processors: processors(in), labels: newNodeLabels(in.Labels)}
	o.node.zone = o.node.place(o.key, in.Labels, corev1.LabelTopologyZone)
	o.node.region = o.node.place(o.key, in.Labels, corev1.LabelTopologyRegion)
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		o.node.add(o.key, in.Status.Addresses, kind)
	}
	o.node.addresses = unique(o.node.addresses)
	return o, nil
}

// place is the value of a label that says where the Node is; "" if it can be no such value.
func (n *node) place(key objectKey, labels map[string]string, label string) string {
	value := labels[label]
	if value != "" && !isLabelValue(value) {
		n.problems = append(n.problems, key.problem("metadata.labels["+label+"]", value, "is no value of a label"))
		return ""
	}
	return value
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

// convertServiceCIDR takes the ranges of a ServiceCIDR. One that is none is a problem.
func convertServiceCIDR(in *networkingv1.ServiceCIDR) (object, *ObjectError) {
	o := object{key: objectKey{kindServiceCIDR, "", in.Name}, cidrs: &serviceCIDR{}}
	for i, s := range in.Spec.CIDRs {
		prefix, ok := parsePrefix(s)
		if !ok {
			o.cidrs.problems = append(o.cidrs.problems, o.key.problem(fmt.Sprintf("spec.cidrs[%d]", i), s, "must be a valid CIDR"))
			continue
		}
		o.cidrs.prefixes = append(o.cidrs.prefixes, prefix)
	}
	return o, checkName(o.key, maxSubdomain, false)
}

func validateServiceCIDR(in *networkingv1.ServiceCIDR) field.ErrorList {
	errs := validateMeta(&in.ObjectMeta, false, apivalidation.NameIsDNSSubdomain)
	path := field.NewPath("spec", "cidrs")
	if len(in.Spec.CIDRs) == 0 {
		errs = append(errs, field.Required(path, "at least one CIDR required"))
	}
	for i, s := range in.Spec.CIDRs {
		if _, ok := parsePrefix(s); !ok {
			errs = append(errs, field.Invalid(path.Index(i), s, "must be a valid CIDR"))
		}
	}
	return errs
}
