// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

func TestEveryBitThatIsPutIsFoundAndComesOutAlone(t *testing.T) {
	a := newMemory[bpf.NearlbAddressBits](filterBits / 64)
	for _, address := range []string{"10.96.0.1", "10.244.3.9", "fd00::1", "2001:db8::7"} {
		a16 := netip.MustParseAddr(address)
		key := keyOf(lb.FrontendKey{Address: netip.AddrPortFrom(a16, 30080), Protocol: lb.TCP})
		for _, bit := range []filterBit{frontendBit(key, kindOf(lb.KindClusterIP)), frontendBit(key, kindOf(lb.KindNodePort)),
			backendBit(netip.AddrPortFrom(a16, 8080))} {
			if bit.isSet(a) || !bit.put(a, true) || bit.put(a, true) || !bit.isSet(a) {
				t.Errorf("bit %v of %s does not hold", bit, address)
			}
			for found := range setBits(a) {
				if found != bit {
					t.Errorf("bit %v is set instead of %v", found, bit)
				}
			}
			bit.put(a, false)
		}
	}
}

// The numbers are those of address_hash in bpf/lib/hash.h, compiled and run.
func TestTheHashOfAnAddressIsTheProgramsHash(t *testing.T) {
	for address, want := range map[string]uint32{
		"10.96.0.1": 353639, "10.244.3.9": 140827, "192.0.2.77": 39428, "fd00:10:96::a": 188084, "2001:db8::7": 67028,
		"fe80::1": 160817, "::": 0,
	} {
		if got := addressHash(address16(netip.MustParseAddr(address))); got != want {
			t.Errorf("hash of %s is %d, want %d", address, got, want)
		}
	}
}

// fastPath is what the programs ask before they look at a packet: a frontend's address, or a frontend's address and port.
func fastPath(s *store, where netip.AddrPort) bool {
	key := keyOf(lb.FrontendKey{Address: where, Protocol: lb.TCP})
	return frontendBit(key, kindOf(lb.KindClusterIP)).isSet(s.filter) || frontendBit(key, kindOf(lb.KindNodePort)).isSet(s.filter)
}

func TestANodePortLeavesTheOtherPortsOfTheNodeAlone(t *testing.T) {
	for _, address := range []string{"192.0.2.77", "2001:db8::77"} {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		node := netip.MustParseAddr(address)
		d := made(1, active(1)...)
		addFrontend(&d, d.Frontends[0].Internal, lb.KindNodePort, netip.AddrPortFrom(node, 30001))
		b.apply(t, d)
		if !fastPath(s, netip.AddrPortFrom(node, 30001)) {
			t.Errorf("the NodePort on %s is not seen", node)
		}
		if fastPath(s, netip.AddrPortFrom(node, 22)) {
			t.Errorf("port 22 of %s takes the slow path", node)
		}
		if _, found, _ := s.frontends.get(addressKey(node)); found {
			t.Errorf("the address %s belongs to the Service", node)
		}
	}
}

func TestAFrontendThatChangesItsKindChangesItsBit(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	where := netip.MustParseAddrPort("192.0.2.77:30001")
	nodePort := func() lb.Decision {
		d := made(1, active(1)...)
		addFrontend(&d, d.Frontends[0].Internal, lb.KindNodePort, where)
		return d
	}
	external := made(2, active(2)...)
	addFrontend(&external, external.Frontends[0].Internal, lb.KindExternalIP, where)

	b.apply(t, nodePort())
	b.apply(t, external) // wins by its kind
	b.later()
	if !fastPath(s, netip.AddrPortFrom(where.Addr(), 22)) {
		t.Error("other ports of an external IP are not seen")
	}
	if _, err := b.Remove(external.Service); err != nil {
		t.Fatal(err)
	}
	b.later()
	if fastPath(s, netip.AddrPortFrom(where.Addr(), 22)) || !fastPath(s, where) {
		t.Error("the NodePort did not get its own bit back")
	}
	restarted := newBench(t, s)
	if !maps.Equal(maps.Collect(restarted.bits.all()), maps.Collect(b.bits.all())) || len(restarted.stale) > 0 {
		t.Errorf("a restart counts bits %v (stale %v), were %v", restarted.bits, restarted.stale, b.bits)
	}
}

func TestAConnectionToARemovedNodePortKeepsItsBit(t *testing.T) {
	s := memoryStore(tinySizes())
	b := newBench(t, s)
	where := netip.MustParseAddrPort("192.0.2.77:30001")
	d := made(1, active(1)...)
	addFrontend(&d, d.Frontends[0].Internal, lb.KindNodePort, where)
	b.apply(t, d)
	putFlow(s, 0, bpf.NearlbFlow{Word: flowLive, Touched: s.clock.jiffies(), Backend: 1, Generation: 1, Protocol: 6,
		Frontend: address16(where.Addr()), FrontendPort: swap16(where.Port()), Seen: uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)})
	b.apply(t, made(1, active(1)...))
	b.later()
	if !fastPath(s, where) {
		t.Error("the connection's packets are not seen any more")
	}
	putFlow(s, 0, bpf.NearlbFlow{})
	b.later()
	if fastPath(s, where) {
		t.Error("the bit stays although nothing needs it")
	}
}
