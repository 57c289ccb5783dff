// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"maps"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Network is how pods are connected: by one of the reference CNI plugins, with addresses of host-local and with portmap, and from node
// to node by plain routes, through VXLAN devices, or by flannel; or as a directory says that somebody brings.
type Network struct {
	Name     string
	Tunneled bool
	Plugin   Plugin
	Flannel  *Flannel
	Given    *Given
}

// Plugin is the type of the first plugin, and what it is told but for addresses and routes.
type Plugin map[string]any

// PointToPoint is the network of a cluster that asks for no other.
var PointToPoint = Network{Name: "ptp", Plugin: Plugin{"type": "ptp", "ipMasq": false}}

// Networks are the different ones. Through tunnels pods want ipMasq: what is between the nodes does not know their addresses.
var Networks = []Network{
	PointToPoint,
	{Name: "ptp, ipMasq", Plugin: Plugin{"type": "ptp", "ipMasq": true}},
	{Name: "ptp over VXLAN, ipMasq", Tunneled: true, Plugin: Plugin{"type": "ptp", "ipMasq": true, "mtu": 1450}},
	{Name: "bridge", Plugin: Plugin{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false}},
	{Name: "bridge, hairpinMode", Plugin: Plugin{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true}},
	{Name: "bridge, promiscMode, ipMasq", Plugin: Plugin{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "promiscMode": true}},
	{Name: "bridge over VXLAN, ipMasq", Tunneled: true, Plugin: Plugin{"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "mtu": 1450}},
	{Name: "flannel, host-gw, iptables", Flannel: &Flannel{Backend: "host-gw"}},
	{Name: "flannel, VXLAN, nftables", Flannel: &Flannel{Backend: "vxlan", NFTables: true}},
}

// options are those of the lab that the nodes are in.
func (n Network) options() lab.Options {
	switch {
	case n.Flannel != nil:
		return n.Flannel.options()
	case n.Given != nil:
		return n.Given.options()
	case n.Tunneled:
		return lab.Options{Network: lab.Tunneled}
	default:
		return lab.Options{}
	}
}

// config is the CNI configuration of a node whose pods have addresses of these subnets.
func (n Network) config(subnets []netip.Prefix) (string, error) {
	type object = map[string]any
	var ranges [][]object
	var routes []object
	for _, s := range subnets {
		ranges = append(ranges, []object{{"subnet": s.String()}})
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if s.Addr().Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		routes = append(routes, object{"dst": everything.String()})
	}
	first := object{"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes}}
	maps.Copy(first, n.Plugin)
	text, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins":    []object{first, {"type": "portmap", "capabilities": object{"portMappings": true}}},
	}, "", "  ")
	return string(text), err
}
