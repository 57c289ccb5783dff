// SPDX-License-Identifier: Apache-2.0

package lab

import "net/netip"

// numbers of the address plan: one octet or group of the address says the node. Number 0 is the router's on a segment.
func uplink4(node int, router bool) netip.Addr {
	last := byte(2)
	if router {
		last = 1
	}
	return netip.AddrFrom4([4]byte{172, 31, byte(node), last})
}

func uplink6(node int, router bool) netip.Addr {
	last := byte(2)
	if router {
		last = 1
	}
	return address6(0x31, node, int(last))
}

func pod4(node, pod int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(node), byte(pod)}) }

func pod6(node, pod int) netip.Addr { return address6(0x24, node, pod) }

// outside4 and outside6 are the ends of the link to a host outside.
func outside4(host int, router bool) netip.Addr {
	last := byte(4*host + 2)
	if router {
		last--
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, last})
}

func outside6(host int, router bool) netip.Addr {
	if router {
		return address6(0x99, host, 1)
	}
	return address6(0x99, host, 2)
}

// hop4 and hop6 are the ends of the link to a router of such a host's own.
func hop4(router bool) netip.Addr {
	if router {
		return netip.AddrFrom4([4]byte{192, 0, 0, 1})
	}
	return netip.AddrFrom4([4]byte{192, 0, 0, 2})
}

func hop6(router bool) netip.Addr {
	if router {
		return address6(0x98, 0, 1)
	}
	return address6(0x98, 0, 2)
}

// onSegment4 and onSegment6 are addresses of hosts outside that share the nodes' segment.
func onSegment4(host int) netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 255, byte(host)}) }

func onSegment6(host int) netip.Addr { return address6(0x31, 255, host) }

// address6 is fd<kind>::<node>:0:0:0:<host>, one /64 a node.
func address6(kind byte, node, host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 1: kind, 7: byte(node), 14: byte(host >> 8), 15: byte(host)})
}
