// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/netip"
	"slices"
)

// Service is a v1 Service of namespace default, with cluster addresses.
type Service struct {
	Name          string
	Annotations   map[string]string
	ClusterIPs    []netip.Addr
	ExternalIPs   []netip.Addr
	LoadBalancers []LoadBalancer // with any, the type is LoadBalancer
	Ports         []Port         // with node ports, the type is NodePort
	Affinity      int            // seconds of ClientIP affinity, 0 for none
	SourceRanges  []netip.Prefix // of load balancer addresses; none: everybody
	ExternalLocal bool           // externalTrafficPolicy Local
	InternalLocal bool           // internalTrafficPolicy Local
}

// LoadBalancer is an ingress of a Service's status.
type LoadBalancer struct {
	IP       netip.Addr // invalid: Hostname alone
	Hostname string
	Proxy    bool // ipMode Proxy: packets are to leave the node
}

func (b LoadBalancer) fields() map[string]any {
	if !b.IP.IsValid() {
		return map[string]any{"hostname": b.Hostname}
	}
	mode := map[bool]string{false: "VIP", true: "Proxy"}[b.Proxy]
	return map[string]any{"ip": b.IP, "ipMode": mode}
}

// Port is a service port, or a port of a slice.
type Port struct {
	Name     string
	Protocol string // TCP or UDP
	Port     uint16
	NodePort uint16 // 0 for none
}

func (p Port) fields() map[string]any {
	fields := map[string]any{"name": p.Name, "protocol": p.Protocol, "port": p.Port}
	if p.NodePort != 0 {
		fields["nodePort"] = p.NodePort
	}
	return fields
}

func (s Service) object() map[string]any {
	metadata := map[string]any{"name": s.Name, "namespace": "default"}
	if len(s.Annotations) > 0 {
		metadata["annotations"] = s.Annotations
	}
	object := kind("v1", "Service", metadata, "spec", s.spec())
	if len(s.LoadBalancers) > 0 {
		object["status"] = map[string]any{"loadBalancer": map[string]any{"ingress": each(s.LoadBalancers, LoadBalancer.fields)}}
	}
	return object
}

func (s Service) spec() map[string]any {
	families := make([]string, len(s.ClusterIPs))
	for i, a := range s.ClusterIPs {
		families[i] = family(a)
	}
	spec := map[string]any{
		"type": s.kind(), "clusterIP": s.ClusterIPs[0], "clusterIPs": s.ClusterIPs, "ipFamilies": families,
		"ports": each(s.Ports, Port.fields),
	}
	if s.Affinity != 0 {
		spec["sessionAffinity"] = "ClientIP"
		spec["sessionAffinityConfig"] = map[string]any{"clientIP": map[string]any{"timeoutSeconds": s.Affinity}}
	}
	if len(s.ExternalIPs) > 0 {
		spec["externalIPs"] = s.ExternalIPs
	}
	if len(s.SourceRanges) > 0 {
		spec["loadBalancerSourceRanges"] = s.SourceRanges
	}
	if s.ExternalLocal {
		spec["externalTrafficPolicy"] = "Local"
	}
	if s.InternalLocal {
		spec["internalTrafficPolicy"] = "Local"
	}
	return spec
}

func (s Service) kind() string {
	switch {
	case len(s.LoadBalancers) > 0:
		return "LoadBalancer"
	case slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 }):
		return "NodePort"
	}
	return "ClusterIP"
}
