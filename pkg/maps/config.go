// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Config is what every program is told.
type Config struct {
	ServiceCIDRs []netip.Prefix // an address inside that no Service has is dropped; 8 at most
	Loopback4    netip.Addr     // source of hairpin connections; zero: DefaultLoopback4
	Loopback6    netip.Addr     // zero: DefaultLoopback6
	Disabled     bool           // every packet passes
	Yield        Yield          // which packets may be of connections that the kernel's NAT translates

	// Netns is the cookie of the host's network namespace (bpf.NamespaceCookie); 0: not known.
	Netns uint64
	// Node4 and Node6 are the node's first address of each family; zero: none.
	Node4, Node6 netip.Addr
	// NodePort4 and NodePort6 answer NodePorts: what a loopback address with a NodePort stands for; zero: none.
	NodePort4, NodePort6 netip.Addr
	// SNATPorts are the source ports of external clients' connections to other nodes; zero: there is no SNAT.
	SNATPorts PortRange
	// SNATWide has every other port from 1024 on serve, where SNATPorts are used up, that is neither a socket's of the host nor in
	// connection tracking: those of SNATQuiet, which the host's own connections do not get by themselves, before the others.
	SNATWide  bool
	SNATQuiet PortRange
	// Sources are the addresses of this node that SNAT may use, beside Node4, Node6 and the first ones of Devices; 63 in all.
	Sources []netip.Addr
	// Devices are the network devices, by ifindex.
	Devices map[uint32]DeviceSources
	// Shortcut says whether translated packets leave past the host's stack, into pods of this node by the devices of Pods.
	Shortcut Shortcut
	// Pods are devices, by ifindex, that are the host's side of a pod's veth, whose other side is in the pod's network namespace.
	Pods []uint32
	// Tunnel takes packets of clients off the node to backends on other nodes as they came.
	Tunnel Tunnel
}

// DeviceSources are the addresses that SNAT uses on a device: one of each family when the route names none, zero: none of that family; and others,
// which serve when the one that the route names has no port left, as far as they are among the sources.
type DeviceSources struct {
	Source4, Source6 netip.Addr
	Others           []netip.Addr
}

// PortRange is a range of ports, both ends in it.
type PortRange struct{ First, Last uint16 }

// Count is the number of ports; 0 of the zero range.
func (r PortRange) Count() uint16 {
	if r.First == 0 || r.Last < r.First {
		return 0
	}
	return r.Last - r.First + 1
}

// Contains says whether the port is one of them.
func (r PortRange) Contains(port uint16) bool {
	return r.Count() > 0 && port >= r.First && port <= r.Last
}

// String is "61000-65535".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// Config reads what the programs are told now; Sources are those in use.
func (t *Tables) Config() (Config, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := read[bpf.NearlbSettings](t.store.settings, 0)
	c := Config{
		Loopback4: optionalAddr(s.Loopback4), Loopback6: optionalAddr(s.Loopback6), Disabled: s.Disabled != 0, Yield: Yield(s.Yield), Netns: s.Netns,
		Node4: optionalAddr(s.Node4), Node6: optionalAddr(s.Node6), NodePort4: optionalAddr(s.NodePort4), NodePort6: optionalAddr(s.NodePort6),
		SNATPorts: portRange(s.SnatFirst, s.SnatCount), SNATWide: s.SnatWide != 0, SNATQuiet: portRange(s.SnatQuietFirst, s.SnatQuietCount),
		Sources: t.sources.inUse(), Shortcut: Shortcut(s.Shortcut), Devices: map[uint32]DeviceSources{},
	}
	for _, cidr := range s.Cidrs[:min(int(s.CidrCount), cidrLimit)] {
		c.ServiceCIDRs = append(c.ServiceCIDRs, prefixOfCidr(cidr.Address, cidr.Mask))
	}
	c.Tunnel = t.tunnelNow()
	for ifindex, d := range t.store.devices.all() {
		if d.Pod != 0 {
			c.Pods = append(c.Pods, ifindex)
			continue
		}
		c.Devices[ifindex] = DeviceSources{t.sources.address(d.Source4), t.sources.address(d.Source6), t.sources.listed(d.Others4 | d.Others6)}
	}
	if err := t.store.devices.err(); err != nil {
		return c, fmt.Errorf("read table devices: %w", err)
	}
	return c, nil
}

func portRange(first, count uint16) PortRange {
	if count == 0 {
		return PortRange{}
	}
	return PortRange{first, first + count - 1}
}

// SNATPorts are the source ports of SNAT as the programs are told, zero: none yet; and whether others serve as well (Config.SNATWide).
func (r *Reader) SNATPorts() (ports PortRange, wide bool) {
	s := read[bpf.NearlbSettings](r.store.settings, 0)
	return portRange(s.SnatFirst, s.SnatCount), s.SnatWide != 0
}

// optionalAddr16 is an address that may be missing: all zero.
func optionalAddr16(a netip.Addr) bpf.NearlbAddress {
	if !a.IsValid() {
		return bpf.NearlbAddress{}
	}
	return address16(a)
}

// optionalAddr is the reverse.
func optionalAddr(a bpf.NearlbAddress) netip.Addr {
	if a == (bpf.NearlbAddress{}) {
		return netip.Addr{}
	}
	return addrOf(a)
}

// DefaultSNATPorts end where the ports end and start above Linux's own range (ip_local_port_range, 32768 to 60999).
func DefaultSNATPorts() PortRange { return PortRange{First: 61000, Last: 65535} }

// WithNode is the configuration with the node's addresses: its first of each family, and the first of each that answers NodePorts.
func (c Config) WithNode(node lb.Node) Config {
	c.Node4, c.Node6 = firstOfFamilies(node.Addresses)
	c.NodePort4, c.NodePort6 = firstOfFamilies(node.NodePortIPs)
	return c
}

func firstOfFamilies(addresses []netip.Addr) (four, six netip.Addr) {
	for _, a := range slices.Backward(addresses) {
		if a.Is4() {
			four = a
		} else {
			six = a
		}
	}
	return four, six
}
