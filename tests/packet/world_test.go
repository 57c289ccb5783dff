// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// world is what a row is run for: one address family, one protocol, one door of the client. Rows name addresses by role and
// number, so that the same row holds in every world.
type world struct {
	v6       bool
	protocol lb.Protocol
	door     door
	cookie   uint64 // of what nodes send each other in the tunnel; 0: none
	mtu      int    // between nodes; 0: 1500
}

func (w world) String() string {
	return strings.ToLower(w.protocol.String()) + map[bool]string{false: "4", true: "6"}[w.v6] + string(w.door)
}

// worlds are both families of the protocols.
func worlds(protocols ...lb.Protocol) []world {
	var all []world
	for _, p := range protocols {
		all = append(all, world{protocol: p}, world{protocol: p, v6: true})
	}
	return all
}

func (w world) addr(v4, v6 string, n int) netip.Addr {
	if w.v6 {
		return w.door.address(netip.MustParseAddr(fmt.Sprintf("%s%x", v6, n)))
	}
	return w.door.address(netip.MustParseAddr(fmt.Sprintf("%s%d", v4, n)))
}

// pod is the n-th pod; pod 1 is the client unless the row says otherwise.
func (w world) pod(n int) netip.Addr { return w.addr("10.244.1.", "fd00:244:1::", n) }

// vip is the n-th ClusterIP, inside the service CIDR.
func (w world) vip(n int) netip.Addr { return w.addr("10.96.0.", "fd00:96::", n) }

// outside is an address that has nothing to do with services or pods.
func (w world) outside(n int) netip.Addr { return w.addr("198.51.100.", "2001:db8:1::", n) }

// node is this node's own address.
func (w world) node() netip.Addr { return w.addr("192.0.2.", "2001:db8:2::", 10) }

func (w world) router() netip.Addr { return w.addr("192.0.2.", "2001:db8:2::", 1) }
func (w world) loopback() netip.Addr {
	if w.v6 {
		return loopback6()
	}
	return loopback4()
}

func loopback4() netip.Addr { return netip.MustParseAddr("169.254.20.20") }
func loopback6() netip.Addr { return netip.MustParseAddr("fd6e:6561:726c:6200::1") }

func cidrs() []netip.Prefix {
	all := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")}
	return append(all, layer3Door.prefix("10.96.0.0/24"), layer3Door.prefix("fd00:96::/112"))
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// packet is the first packet of a connection in this world.
func (w world) packet(src, dst netip.AddrPort) packet {
	p := packet{src: src, dst: dst, protocol: w.protocol, id: 0x1234, payload: []byte("hello, service")}
	switch w.protocol {
	case lb.TCP:
		p.flags, p.seq, p.payload = "S", 0x01020304, nil
	case lb.SCTP:
		p.payload = append([]byte{1, 0, 0, 20}, make([]byte, 16)...) // INIT
	}
	return p
}

// service is one port of a Service with one frontend; the zero values are a ClusterIP that balances.
type service struct {
	name     string // of the Service
	port     string // name of the port
	kind     lb.Kind
	address  netip.AddrPort
	tiers    [][]netip.AddrPort
	extra    []netip.AddrPort // endpoints that no tier lists
	remote   bool             // at a network's door: its backends are on other nodes
	states   map[netip.AddrPort]lb.State
	nodes    map[netip.AddrPort]string // of its backends; none: n1
	action   lb.Action
	reason   lb.Reason
	affinity time.Duration
	ranges   []netip.Prefix
	onHost   bool                         // the address is the node's own
	external func(*lb.Side)               // what tells the external side from the internal one; nil: nothing
	lists    map[netip.AddrPort][]lb.List // that a backend is in; none: the cluster's if a tier has it
}

// decide makes one Decision of services that have the same name.
func (w world) decide(services ...service) lb.Decision {
	name := lb.ServiceName{Namespace: "default", Name: services[0].name}
	d := lb.Decision{Service: name}
	for _, s := range services {
		d.Frontends = append(d.Frontends, w.frontend(name, s))
		d.Backends = append(d.Backends, w.backends(s)...)
	}
	return d
}

func (w world) frontend(name lb.ServiceName, s service) lb.Frontend {
	f := lb.Frontend{
		Key:  lb.FrontendKey{Address: s.address, Protocol: w.protocol},
		Port: lb.PortName{Service: name, Port: s.port, Protocol: w.protocol},
		Kind: or(s.kind, lb.KindClusterIP), OnHost: s.onHost, Affinity: s.affinity, SourceRanges: s.ranges,
	}
	side := lb.Side{Action: or(s.action, lb.Balance), Reason: or(s.reason, lb.ReasonAll), List: lb.ListCluster}
	names := []lb.TierName{lb.TierNode, lb.TierZone, lb.TierCluster}
	if s.remote {
		names = []lb.TierName{lb.TierZone, lb.TierRegion, lb.TierCluster}
	}
	for i, tier := range s.tiers {
		side.Tiers = append(side.Tiers, lb.Tier{Name: names[i], Backends: w.keys(s.port, tier)})
	}
	f.Internal, f.External = side, side
	if s.external != nil {
		s.external(&f.External)
	}
	return f
}

func (w world) keys(port string, addresses []netip.AddrPort) []lb.BackendKey {
	var keys []lb.BackendKey
	for _, a := range addresses {
		keys = append(keys, lb.BackendKey{Port: lb.PortKey{Name: port, Protocol: w.protocol}, Address: a})
	}
	return keys
}

func (w world) backends(s service) []lb.Backend {
	var all []lb.Backend
	add := func(addresses []netip.AddrPort, near lb.TierName, lists ...lb.List) {
		for _, key := range w.keys(s.port, addresses) {
			if w.door != podDoor {
				near = map[bool]lb.TierName{false: lb.TierNode, true: lb.TierCluster}[s.remote]
			}
			if own := s.lists[key.Address]; own != nil {
				lists = own
			}
			all = append(all, lb.Backend{Key: key, Node: or(s.nodes[key.Address], "n1"), Zone: "a", State: or(s.states[key.Address], lb.Active), Near: near, Lists: lists})
		}
	}
	names := []lb.TierName{lb.TierNode, lb.TierZone, lb.TierCluster}
	for i, tier := range s.tiers {
		add(tier, names[i], lb.ListCluster)
	}
	add(s.extra, lb.TierCluster)
	return all
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// tier is one tier of backends at consecutive pods with one port.
func (w world) tier(port uint16, pods ...int) []netip.AddrPort {
	var all []netip.AddrPort
	for _, n := range pods {
		all = append(all, at(w.pod(n), port))
	}
	return all
}

// tiersOf is for services with one tier.
func tiersOf(backends ...[]netip.AddrPort) [][]netip.AddrPort { return backends }

// forEachWorld runs a test for both families of each protocol, one rig for all of them.
func forEachWorld(t *testing.T, o bpf.Options, test func(*testing.T, *rig, world), protocols ...lb.Protocol) {
	t.Helper()
	forEachOf(t, o, worlds(protocols...), test)
}
