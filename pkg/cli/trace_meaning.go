// SPDX-License-Identifier: Apache-2.0

package cli

// verdictText says in words what a verdict of enum verdict says in one; "" for those that a first packet cannot meet.
func verdictText(name string) string {
	switch name {
	case "pass_not_ip":
		return "neither IPv4 nor IPv6: left as it is"
	case "pass_not_service":
		return "no Service has this address: left as it is"
	case "pass_protocol":
		return "neither TCP, UDP, SCTP nor ICMP: left as it is"
	case "pass_direct":
		return "straight to a backend's own address: left as it is"
	case "pass_icmp":
		return "ICMP that has nothing to do with a Service: left as it is"
	case "pass_disabled":
		return "the agent has switched nearlb off: everything is left as it is"
	case "pass_draining":
		return "new connections are left to kube-proxy (nearlb handover --to nearlb takes them again)"
	case "pass_other_nat":
		return "the kernel's NAT translates this connection, for kube-proxy: left as it is"
	case "translate_balance":
		return "a new connection: its backend was picked by hash"
	case "translate_affinity":
		return "a new connection: session affinity named its backend"
	case "translate_hairpin":
		return "client and backend are one pod: the packet turns round at its device"
	case "reject_no_endpoints":
		return "refused at once: the Service has no usable endpoint"
	case "reject_unknown_port":
		return "refused at once: the address is a Service's, the port is none of its ports"
	case "reject_no_topology_match":
		return "refused at once: no endpoint is near enough"
	case "reject_echo":
		return "answered: an echo request to a Service's address"
	case "drop_no_local_endpoints":
		return "dropped: traffic policy Local, and no usable endpoint on this node"
	case "drop_unallocated":
		return "dropped: the address is for Services, and none has it"
	case "drop_source_range":
		return "dropped: loadBalancerSourceRanges does not name the client"
	case "drop_no_route":
		return "dropped: the routing table has no way to the backend"
	case "drop_forwarding_off":
		return "dropped: the backend is on another node, and the kernel may not forward (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding)"
	case "drop_no_source":
		return "dropped: the backend is on another node, and this node has no address to reach it from"
	case "drop_unknown_reply":
		return "dropped: from a backend to one of the ports of --snat-ports, and no connection has it"
	case "drop_sctp_port":
		return "dropped: SCTP whose port would have to change, which its checksum forbids"
	case "drop_no_backend":
		return "dropped: the tables name backends, and none is usable"
	}
	return ""
}
