// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"net/netip"
	"slices"
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

// naming is what an object means for names; zero: nothing.
type naming struct {
	service   *lb.NamedService // without slices
	owner     lb.ServiceName   // of slice
	slice     *lb.NamedSlice
	pod       *lb.NamedPod
	namespace bool // a Namespace of this name exists
}

// namer makes namings of objects.
type namer struct {
	pods bool // endpoints may be named by their Pods
}

// convertNaming is convertFile for names. Objects are validated as for packets first: what breaks a rule there is refused here, too.
func convertNaming(in runtime.Object) (object, *ObjectError) {
	switch in := in.(type) {
	case *corev1.Namespace:
		o := object{key: objectKey{kindNamespace, "", in.Name}, naming: &naming{namespace: true}}
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
	if old, is := in.(*discoveryv1beta1.EndpointSlice); is {
		in = fromV1beta1(old)
	}
	namer{pods: true}.name(&o, in)
	return o, nil
}

// name adds what a Service or a slice means for names to what it means for packets.
func (n namer) name(o *object, in runtime.Object) {
	switch in := in.(type) {
	case *corev1.Service:
		o.naming = &naming{service: namedService(in)}
		if o.service != nil && slices.Equal(o.service.clusterIPs, o.naming.service.ClusterIPs) {
			o.naming.service.ClusterIPs, o.naming.service.Name = o.service.clusterIPs, o.service.name // the same memory, kept once
		}
	case *discoveryv1.EndpointSlice:
		o.naming = n.namedSlice(in)
		if o.slice != nil && o.naming != nil && slices.Equal(o.slice.endpoints, o.naming.slice.Endpoints) {
			o.naming.slice.Endpoints, o.naming.owner = o.slice.endpoints, o.slice.owner
		}
	}
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
	out.Ports = make([]lb.NamedPort, 0, len(svc.Spec.Ports))
	for _, p := range svc.Spec.Ports {
		protocol, _ := lb.ParseProtocol(string(p.Protocol)) // validated
		out.Ports = append(out.Ports, lb.NamedPort{Name: shared(p.Name), Protocol: protocol, Number: uint16(p.Port)})
	}
	return out
}

// namedSlice takes slices of every address type; headless Services' slices are what most names are made of.
func (n namer) namedSlice(in *discoveryv1.EndpointSlice) *naming {
	name := in.Labels[labelServiceName]
	if name == "" {
		return nil
	}
	ports := make([]lb.NamedPort, 0, len(in.Ports))
	for _, p := range in.Ports {
		protocol, _ := lb.ParseProtocol(string(protocolOf(p)))
		ports = append(ports, lb.NamedPort{Name: shared(deref(p.Name)), Protocol: protocol, Number: uint16(deref(p.Port))})
	}
	endpoints := make([]lb.NamedEndpoint, 0, len(in.Endpoints))
	for i := range in.Endpoints {
		e := &in.Endpoints[i]
		if in.AddressType != discoveryv1.AddressTypeFQDN && len(validateEndpoint(e, in.AddressType, field.NewPath("endpoints").Index(i))) > 0 {
			continue // a problem that plan tells of
		}
		endpoints = append(endpoints, n.namedEndpoint(in.AddressType, e))
	}
	return &naming{owner: lb.ServiceName{Namespace: shared(in.Namespace), Name: name}, slice: lb.NewNamedSlice(in.Name, ports, endpoints...)}
}

func (n namer) namedEndpoint(kind discoveryv1.AddressType, in *discoveryv1.Endpoint) lb.NamedEndpoint {
	out := lb.NamedEndpoint{Hostname: deref(in.Hostname), Is: conditionsOf(in), Place: lb.Place{
		Node:   cmp.Or(deref(in.NodeName), in.DeprecatedTopology[corev1.LabelHostname]),
		Zone:   cmp.Or(deref(in.Zone), in.DeprecatedTopology[corev1.LabelTopologyZone]),
		Region: in.DeprecatedTopology[corev1.LabelTopologyRegion],
	}}
	if in.Hints != nil {
		out.NodeHints, out.ZoneHints = joined(nodeHints(in.Hints)), joined(zoneHints(in.Hints))
	}
	if n.pods {
		out.Pod = podOf(in)
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
