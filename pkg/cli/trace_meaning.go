// SPDX-License-Identifier: Apache-2.0

package cli

// verdictText says in words what a verdict says in one (as bpf.Verdict.Spelled); "" for those that a first packet cannot meet.
func verdictText(name string) string {
	switch name {
	case "pass-not-ip":
		return "neither IPv4 nor IPv6: left as it is"
	case "pass-not-service":
		return "no Service has this address: left as it is"
	case "pass-protocol":
		return "neither TCP, UDP, SCTP nor ICMP: left as it is"
	case "pass-direct":
		return "straight to a backend's own address: left as it is"
	case "pass-icmp":
		return "ICMP that has nothing to do with a Service: left as it is"
	case "pass-disabled":
		return "the agent has switched nearlb off: everything is left as it is"
	case "pass-draining":
		return "new connections are left to kube-proxy (nearlb handover --to nearlb takes them again)"
	case "pass-other-nat":
		return "the kernel's NAT translates this connection, for kube-proxy: left as it is"
	case "pass-unknown-reply":
		return "from a backend to a port of the node, and no connection of nearlb's has it: left as it is"
	case "translate-balance":
		return "a new connection: its backend was picked by hash"
	case "translate-affinity":
		return "a new connection: session affinity named its backend"
	case "translate-retry":
		return "a SYN that came again: the backend before did not answer it, or refused it; this is the next one"
	case "translate-hairpin":
		return "client and backend are one pod: the packet turns round at its device"
	case "reject-no-endpoints":
		return "refused at once: the Service has no usable endpoint"
	case "reject-unknown-port":
		return "refused at once: the address is a Service's, the port is none of its ports"
	case "reject-no-topology-match":
		return "refused at once: no endpoint is near enough"
	case "reject-echo":
		return "answered: an echo request to a Service's address"
	case "drop-no-local-endpoints":
		return "dropped: traffic policy Local, and no usable endpoint on this node"
	case "drop-unallocated":
		return "dropped: the address is for Services, and none has it"
	case "drop-source-range":
		return "dropped: loadBalancerSourceRanges does not name the client"
	case "drop-no-route":
		return "dropped: the routing table has no way to the backend"
	case "drop-forwarding-off":
		return "dropped: the backend is on another node, and the kernel may not forward (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding)"
	case "drop-no-source":
		return "dropped: the backend is on another node, and this node has no address to reach it from"
	case "drop-sctp-port":
		return "dropped: SCTP whose port would have to change, which its checksum forbids"
	case "drop-no-backend":
		return "dropped: the tables name backends, and none is usable"
	}
	return ""
}
