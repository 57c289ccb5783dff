// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	discoveryv1beta1 "k8s.io/api/discovery/v1beta1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The kinds that names alone are made of.
const (
	kindNamespace kind = "Namespace"
	kindPod       kind = "Pod"
)

// naming is what an object means for names; all nil: nothing.
type naming struct {
	service *lb.NamedService // without slices
	owner   lb.ServiceName   // of slice
	slice   *lb.NamedSlice
	pod     *lb.NamedPod
}

// convertNaming is convertFile for names. Objects are validated as for packets first: what breaks a rule there is refused here, too.
func convertNaming(in runtime.Object) (object, *ObjectError) {
	switch in := in.(type) {
	case *corev1.Namespace:
		o := object{key: objectKey{kindNamespace, "", in.Name}, naming: &naming{}}
		return o, refused(o.key, validateMeta(&in.ObjectMeta, false, apivalidation.NameIsDNSLabel))
	case *corev1.Pod:
		o, err := convertNamedPod(in)
		o.naming.pod.Wishes = podWishes(in)
		return o, err
	}
	o, err := convertFile(in)
	if err != nil {
		return o, err
	}
	switch in := in.(type) {
	case *corev1.Service:
		o.naming = &naming{service: namedService(in)}
	case *discoveryv1.EndpointSlice:
		o.naming = namedSlice(in)
	case *discoveryv1beta1.EndpointSlice:
		o.naming = namedSlice(fromV1beta1(in))
	}
	return o, nil
}

func namedService(in *corev1.Service) *lb.NamedService {
	svc := in.DeepCopy()
	defaultService(svc)
	selection, _ := nameSelection(svc) // a problem that plan tells of
	out := &lb.NamedService{
		Name:         lb.ServiceName{Namespace: svc.Namespace, Name: svc.Name},
		ExternalName: "",
		Headless:     svc.Spec.ClusterIP == corev1.ClusterIPNone,
		Selection:    selection,
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		out.ExternalName, out.Headless = strings.TrimSuffix(svc.Spec.ExternalName, "."), false
		return out
	}
	for _, text := range svc.Spec.ClusterIPs {
		if ip, ok := parseAddr(text); ok {
			out.ClusterIPs = append(out.ClusterIPs, ip)
		}
	}
	for _, p := range svc.Spec.Ports {
		protocol, _ := lb.ParseProtocol(string(p.Protocol)) // validated
		out.Ports = append(out.Ports, lb.NamedPort{Name: p.Name, Protocol: protocol, Number: uint16(p.Port)})
	}
	return out
}

// namedSlice takes slices of every address type; headless Services' slices are what most names are made of.
func namedSlice(in *discoveryv1.EndpointSlice) *naming {
	name := in.Labels[labelServiceName]
	if name == "" {
		return nil
	}
	out := &lb.NamedSlice{Name: in.Name}
	for _, p := range in.Ports {
		protocol, _ := lb.ParseProtocol(string(protocolOf(p)))
		out.Ports = append(out.Ports, lb.NamedPort{Name: deref(p.Name), Protocol: protocol, Number: uint16(deref(p.Port))})
	}
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if in.AddressType != discoveryv1.AddressTypeFQDN && len(validateEndpoint(e, in.AddressType, field.NewPath("endpoints").Index(i))) > 0 {
			continue // a problem that plan tells of
		}
		out.Endpoints = append(out.Endpoints, namedEndpoint(in.AddressType, e))
	}
	return &naming{owner: lb.ServiceName{Namespace: in.Namespace, Name: name}, slice: out}
}

func namedEndpoint(kind discoveryv1.AddressType, in *discoveryv1.Endpoint) lb.NamedEndpoint {
	out := lb.NamedEndpoint{
		Ready:    in.Conditions.Ready == nil || *in.Conditions.Ready,
		Hostname: deref(in.Hostname),
		Node:     shared(cmp.Or(deref(in.NodeName), in.DeprecatedTopology[corev1.LabelHostname])),
		Zone:     shared(cmp.Or(deref(in.Zone), in.DeprecatedTopology[corev1.LabelTopologyZone])),
		Region:   shared(in.DeprecatedTopology[corev1.LabelTopologyRegion]),
	}
	if in.TargetRef != nil && len(in.TargetRef.Name) <= maxLabel {
		out.Pod = in.TargetRef.Name
	}
	for _, text := range in.Addresses {
		if kind == discoveryv1.AddressTypeFQDN {
			out.Targets = append(out.Targets, text)
		} else if ip, ok := parseAddr(text); ok {
			out.Addresses = append(out.Addresses, ip)
		}
	}
	return out
}

// convertNamedPod leaves out the addresses of Pods that are terminating or over (notOver): they have no names any more.
func convertNamedPod(in *corev1.Pod) (object, *ObjectError) {
	o := object{key: objectKey{kindPod, in.Namespace, in.Name}}
	path := field.NewPath("status", "podIPs")
	errs := validateMeta(&in.ObjectMeta, true, apivalidation.NameIsDNSSubdomain)
	var ips []netip.Addr
	podIPs := in.Status.PodIPs
	if len(podIPs) == 0 && in.Status.PodIP != "" {
		podIPs = []corev1.PodIP{{IP: in.Status.PodIP}}
	}
	for i, p := range podIPs {
		ip, ok := parseAddr(p.IP)
		if !ok {
			errs = append(errs, field.Invalid(path.Index(i).Child("ip"), p.IP, "must be a valid IP address"))
		}
		ips = append(ips, ip)
	}
	switch phase := in.Status.Phase; {
	case in.DeletionTimestamp != nil, phase == corev1.PodSucceeded, phase == corev1.PodFailed, phase == corev1.PodUnknown:
		ips = nil
	}
	o.naming = &naming{pod: &lb.NamedPod{Name: lb.PodName{Namespace: in.Namespace, Name: in.Name}, Addresses: ips}}
	return o, refused(o.key, errs)
}

// podWishes are what the kubelet makes a Pod's resolv.conf and hostname of.
func podWishes(in *corev1.Pod) *lb.PodWishes {
	out := &lb.PodWishes{
		Hostname: in.Spec.Hostname, Subdomain: in.Spec.Subdomain, HostnameAsFQDN: deref(in.Spec.SetHostnameAsFQDN),
		HostNetwork: in.Spec.HostNetwork, Policy: string(in.Spec.DNSPolicy),
	}
	if c := in.Spec.DNSConfig; c != nil {
		out.Nameservers, out.Searches = c.Nameservers, c.Searches
		for _, o := range c.Options {
			text := o.Name
			if value := deref(o.Value); value != "" {
				text += ":" + value
			}
			out.Options = append(out.Options, text)
		}
	}
	return out
}
