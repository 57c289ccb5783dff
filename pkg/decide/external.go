// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// externalIPs are those of spec.externalIPs that the node serves. Whatever the policy, nobody gets an address that is not the
// Service's own without a problem that says so (CVE-2020-8554).
func (d *doorway) externalIPs(in lb.Input, node lb.Node) []netip.Addr {
	const field = "spec.externalIPs"
	var out []netip.Addr
	for _, a := range d.ofServedFamily(field, in.Service.ExternalIPs) {
		owner, taken := in.Taken[a]
		switch {
		case slices.Contains(in.Reserved, a): // else whoever may write a Service would answer the node's pods in the place of the cluster's DNS
			d.problem(field, "%v: not served, as the pods of this node ask for names there (--dns-address)", a)
		case node.ExternalIPs == lb.ExternalIPsDenied:
			d.problem(field, "%v: not served, as no external IP is (--external-ips=deny)", a)
		case node.ExternalIPs == lb.ExternalIPsLocal && taken:
			d.problem(field, "%v: not served, as it is %s (--external-ips=local)", a, owner)
		case node.ExternalIPs == lb.ExternalIPsLocal && !slices.Contains(node.HostIPs, a):
			d.problem(field, "%v: not served, as no device of this host has it (--external-ips=local)", a)
		default:
			if taken {
				d.problem(field, "%v is %s: who goes there on this Service's ports is served by it instead (--external-ips=local or deny refuses that)", a, owner)
			}
			out = append(out, a)
		}
	}
	return out
}
