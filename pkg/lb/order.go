// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// String is "name/TCP", or "TCP" for the unnamed port.
func (k PortKey) String() string {
	if k.Name == "" {
		return k.Protocol.String()
	}
	return k.Name + "/" + k.Protocol.String()
}

// Compare orders by name, then protocol number.
func (k PortKey) Compare(o PortKey) int {
	return cmp.Or(strings.Compare(k.Name, o.Name), cmp.Compare(k.Protocol, o.Protocol))
}

// Key is the port without its Service: what endpoints are joined by.
func (p PortName) Key() PortKey { return PortKey{Name: p.Port, Protocol: p.Protocol} }

// String is "10.96.0.10:80/TCP".
func (k FrontendKey) String() string { return fmt.Sprintf("%v/%v", k.Address, k.Protocol) }

// Compare orders by address (IPv4 first), port, protocol.
func (k FrontendKey) Compare(o FrontendKey) int {
	return cmp.Or(k.Address.Compare(o.Address), cmp.Compare(k.Protocol, o.Protocol))
}

// String is "10.244.1.2:8080 http/TCP".
func (k BackendKey) String() string { return fmt.Sprintf("%v %v", k.Address, k.Port) }

// Compare orders by address (IPv4 first), port number, then port key.
func (k BackendKey) Compare(o BackendKey) int {
	return cmp.Or(k.Address.Compare(o.Address), k.Port.Compare(o.Port))
}

// Compare is the canonical order of frontends: by port name, protocol, kind, address.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(f.Port.Compare(o.Port), f.Kind.Compare(o.Kind), f.Key.Compare(o.Key))
}

// Compare orders kinds as contracts.md lists them: ClusterIP, NodePort, ExternalIP, LoadBalancer.
func (k Kind) Compare(o Kind) int {
	return cmp.Or(cmp.Compare(k.rank(), o.rank()), strings.Compare(string(k), string(o)))
}

// Precedence orders the kinds that claim one key: the lowest has it. ClusterIP, LoadBalancer, ExternalIP, NodePort, the order
// in which kube-proxy matches packets; LoadBalancer comes before ExternalIP because an address that is both is guarded by the
// source ranges there too.
func (k Kind) Precedence() int {
	return slices.Index([]Kind{KindClusterIP, KindLoadBalancer, KindExternalIP, KindNodePort}, k)
}

// Field is the field of a Service that makes frontends of the kind.
func (k Kind) Field() string {
	switch k {
	case KindClusterIP:
		return "spec.clusterIPs"
	case KindNodePort:
		return "spec.ports[].nodePort"
	case KindExternalIP:
		return "spec.externalIPs"
	}
	return "status.loadBalancer.ingress"
}

func (k Kind) rank() int {
	return slices.Index([]Kind{KindClusterIP, KindNodePort, KindExternalIP, KindLoadBalancer}, k)
}

// Compare is the canonical order of endpoints' reasons: by port name, protocol, address, slice, then everything else.
func (e EndpointReason) Compare(o EndpointReason) int {
	if c := cmp.Or(e.Port.Compare(o.Port), e.Address.Compare(o.Address), strings.Compare(e.Slice, o.Slice)); c != 0 {
		return c
	}
	return cmp.Or(strings.Compare(e.Node, o.Node), strings.Compare(e.Zone, o.Zone),
		cmp.Compare(truth(o.Selected), truth(e.Selected)), strings.Compare(string(e.Reason), string(o.Reason)))
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Compare orders by object, field, message.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(strings.Compare(p.Object, o.Object), strings.Compare(p.Field, o.Field), strings.Compare(p.Message, o.Message))
}

// Object is how problems name a Service: "Service namespace/name".
func (n ServiceName) Object() string { return "Service " + n.String() }
