// SPDX-License-Identifier: Apache-2.0

package lb

import "net/netip"

// ExternalIPPolicy says which of Services' spec.externalIPs a node serves (--external-ips). Who may write a Service may put any
// address there, and so would get the traffic that goes to it (CVE-2020-8554).
type ExternalIPPolicy string

// The policies. The zero value is ExternalIPsAllowed.
const (
	ExternalIPsAllowed ExternalIPPolicy = "allow" // each one, as kube-proxy; what belongs to somebody else is a problem
	ExternalIPsLocal   ExternalIPPolicy = "local" // those that this host has on a device, unless they are a Node's or in a range of ClusterIPs
	ExternalIPsDenied  ExternalIPPolicy = "deny"  // none
)

// Taken says of addresses in a Service's spec.externalIPs whose they are besides: "the address of Node n1".
type Taken map[netip.Addr]string
