// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

func TestWhatIsPutIsFoundAndComesOutAlone(t *testing.T) {
	s := memoryStore(tinySizes())
	for _, address := range []string{"10.96.0.1", "10.244.3.9", "fd00::1", "2001:db8::7"} {
		a := netip.MustParseAddr(address)
		key := keyOf(lb.FrontendKey{Address: netip.AddrPortFrom(a, 30080), Protocol: lb.TCP})
		for _, k := range []known{s.frontendKnown(key, ofKind(lb.KindClusterIP)), s.frontendKnown(key, ofKind(lb.KindNodePort)),
			s.backendKnown(netip.AddrPortFrom(a, 8080))} {
			if k.isSet(s.filter) || !k.put(s.filter) || k.put(s.filter) || !k.isSet(s.filter) {
				t.Errorf("%v of %s does not hold", k, address)
			}
			pair := k.bits()
			for found := range setBits(s.filter) {
				if found != pair[0] && found != pair[1] {
					t.Errorf("bit %v is set, want %v", found, pair)
				}
			}
			for _, bit := range pair {
				bit.put(s.filter, false)
			}
		}
	}
}

func ofKind(kind lb.Kind) *recordValue { return &recordValue{Kind: kindOf(kind)} }

// The numbers are those of endpoint_hash in bpf/lib/settings.h, compiled and run.
func TestTheHashOfAnAddressIsTheProgramsHash(t *testing.T) {
	for _, row := range []struct {
		address string
		port    uint16
		seed    uint64
		want    uint32
	}{
		{"10.96.0.1", 80, 0, 16401382},
		{"10.96.0.1", 0, 0, 90531730},
		{"10.96.0.1", 80, 0x123456789abcdef0, 28217553},
		{"255.255.255.255", 65535, ^uint64(0), 55294237},
		{"fd00::1", 53, 0, 41036953},
		{"2001:db8::7", 30080, 0xfedcba9876543210, 111127560},
	} {
		if got := endpointHash(address16(netip.MustParseAddr(row.address)), swap16(row.port), row.seed); got != row.want {
			t.Errorf("hash of %s, port %d, seed %#x is %d, want %d", row.address, row.port, row.seed, got, row.want)
		}
	}
}

// Addresses in a row, as clusters have them, are taken for known ones as seldom as those of chance would be, whatever the seed: of two
// bits in one word of 64, for n addresses in 32768 words. One bit of 524288, as layouts before 3 had, was wrong for 1.9 % at 10,000 and
// for 9.1 % at 50,000.
func TestFewStrangersPassForKnown(t *testing.T) {
	for _, row := range []struct {
		n     int
		most  float64 // of strangers, over all seeds
		once  float64 // with one seed
		bases [2]string
	}{
		{10_000, 0.001, 0.005, [2]string{"10.96.0.0", "fd00:96::"}},
		{50_000, 0.005, 0.02, [2]string{"10.244.0.0", "fd00:244::"}},
	} {
		for _, base := range row.bases {
			sum, rounds := 0.0, 10
			for seed := range rounds {
				wrong := strangers(netip.MustParseAddr(base), row.n, uint64(seed)*0x9e3779b97f4a7c15)
				if wrong > row.once {
					t.Errorf("%d addresses from %s on, seed %d: %.3f %% of others pass for them", row.n, base, seed, 100*wrong)
				}
				sum += wrong
			}
			t.Logf("%d addresses from %s on: %.4f %% of others pass for them", row.n, base, 100*sum/float64(rounds))
			if sum/float64(rounds) > row.most {
				t.Errorf("%d addresses from %s on: %.3f %% of others pass for them", row.n, base, 100*sum/float64(rounds))
			}
		}
	}
}

// strangers is the share of addresses behind n known ones that pass for one of them.
func strangers(base netip.Addr, n int, seed uint64) float64 {
	s := memoryStore(tinySizes())
	write(s.settings, 0, bpf.NearlbSettings{Seed: seed})
	from := base.As16()
	first := binary.BigEndian.Uint32(from[12:])
	nth := func(i int) netip.Addr {
		a := from
		binary.BigEndian.PutUint32(a[12:], first+uint32(i))
		return netip.AddrFrom16(a).Unmap()
	}
	for i := range n {
		s.known(frontendPlane, address16(nth(i)), 0).put(s.filter)
	}
	wrong, asked := 0, 50_000
	for i := range asked {
		if s.known(frontendPlane, address16(nth(n+i)), 0).isSet(s.filter) {
			wrong++
		}
	}
	return float64(wrong) / float64(asked)
}

// fastPath is what the programs ask before they look at a packet: a frontend's address, or a frontend's address and port.
func fastPath(s *store, where netip.AddrPort) bool {
	key := keyOf(lb.FrontendKey{Address: where, Protocol: lb.TCP})
	return s.frontendKnown(key, ofKind(lb.KindClusterIP)).isSet(s.filter) || s.frontendKnown(key, ofKind(lb.KindNodePort)).isSet(s.filter)
}

// An address of the node that a Service has as well stays the node's but for the Service's ports; when it is the node's no more, it is
// the Service's whole.
func TestABalancersAddressThatIsTheNodesLeavesItsOtherPortsAlone(t *testing.T) {
	for _, address := range []string{"192.0.2.77", "2001:db8::77"} {
		for _, kind := range []lb.Kind{lb.KindLoadBalancer, lb.KindExternalIP} {
			s := memoryStore(tinySizes())
			b := newBench(t, s)
			node := netip.MustParseAddr(address)
			of := func(onHost bool) lb.Decision {
				d := made(1, active(1)...)
				addFrontend(&d, d.Frontends[0].Internal, kind, netip.AddrPortFrom(node, 443))
				d.Frontends[len(d.Frontends)-1].OnHost = onHost
				return d
			}
			for _, onHost := range []bool{true, false, true} {
				b.apply(t, of(onHost))
				b.later()
				_, found, _ := b.store.frontends.get(addressKey(node))
				if !fastPath(s, netip.AddrPortFrom(node, 443)) || fastPath(s, netip.AddrPortFrom(node, 22)) == onHost || found == onHost {
					t.Errorf("%s %s, on the host %v: port 443 is seen %v, port 22 %v, the address is the Service's %v", kind, node, onHost,
						fastPath(s, netip.AddrPortFrom(node, 443)), fastPath(s, netip.AddrPortFrom(node, 22)), found)
				}
			}
			restarted := newBench(t, s)
			if !maps.Equal(maps.Collect(restarted.bits.all()), maps.Collect(b.bits.all())) || len(restarted.stale) > 0 {
				t.Errorf("a restart counts bits %v (stale %v), were %v", restarted.bits, restarted.stale, b.bits)
			}
		}
	}
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

// A connection that is carried over needs bits of its own only where its frontend has none: others would stay until the next start, and
// let more strangers pass for known.
func TestACarriedConnectionSetsBitsOnlyWhereNothingKnowsItsFrontend(t *testing.T) {
	for _, text := range []string{"198.51.100.7:80", "[2001:db8:7::7]:80"} {
		where := netip.MustParseAddrPort(text)
		key := keyOf(lb.FrontendKey{Address: where, Protocol: lb.TCP})
		flow := bpf.NearlbFlow{Frontend: key.Address, FrontendPort: key.Port, Protocol: 6}
		direct := flow
		direct.Flags = flowDirect
		s := memoryStore(tinySizes())
		port, address, backend := s.frontendKnown(key, ofKind(lb.KindNodePort)), s.frontendKnown(key, ofKind(lb.KindClusterIP)), s.backendKnown(where)
		for name, c := range map[string]struct {
			flow         bpf.NearlbFlow
			before, want []known
		}{
			"of an address that is known":          {flow, []known{address}, []known{address}},
			"of an address and port that is known": {flow, []known{port}, []known{port}},
			"of a frontend that has gone":          {flow, nil, []known{port}},
			"straight to a backend":                {direct, []known{address}, []known{address, backend}},
		} {
			s, want := memoryStore(tinySizes()), map[filterBit]bool{}
			for _, k := range c.before {
				k.put(s.filter)
			}
			for _, k := range c.want {
				for _, bit := range k.bits() {
					want[bit] = true
				}
			}
			(&Carrier{store: s}).show(&c.flow)
			got := map[filterBit]bool{}
			for bit := range setBits(s.filter) {
				got[bit] = true
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s, %s: bits %v, want %v", text, name, got, want)
			}
		}
	}
}
