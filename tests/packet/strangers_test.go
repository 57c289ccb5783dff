// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Small tables beside the flow table have a row of a connection by a hash of it. These tests are about who else gets the row.

// twice gives a Service's one frontend a second one, with the same backends: who has both addresses may use them from one port.
func twice(d lb.Decision, w world) lb.Decision {
	other := d.Frontends[0]
	other.Key.Address, other.Kind = at(w.vip(11), 80), lb.KindExternalIP
	d.Frontends = append(d.Frontends, other)
	return d
}

// both opens connections from one port to both frontends of twice, until two have the same backend.
func (r *rig) both(w world) (one, two talk) {
	r.Helper()
	for port := range uint16(64) {
		one = r.open(w, 41000+port)
		if two = r.start(one.in.to(at(w.vip(11), 80))); two.out.dst == one.out.dst {
			return one, two
		}
	}
	r.Fatal("no two connections have the same backend")
	return one, two
}

func TestDatagramsToOneFrontendOfAServiceAreNoneToAnother(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.seed(1)
		r.publish(twice(asking(webTiers(w, w.tier(8080, 2, 3, 4)), 3), w))
		one, two := r.both(w)
		for range 3 {
			one.sends(r, "translate_established")
		}
		r.askedFor(retryAfter)
		if again := two.sends(r, "translate_established"); !again.same(two) {
			t.Errorf("left to %s, now to %s", two.out.dst, again.out.dst)
		}
		if moved := one.sends(r, "translate_retry"); moved.out.dst == one.out.dst {
			t.Errorf("to %s again", moved.out.dst)
		}
	}, lb.UDP)
}

func TestConnectionsOfOnePortThatAreLostAreEachReset(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.seed(1)
		r.publish(twice(webTiers(w, w.tier(8080, 2)), w))
		one, two := r.both(w)
		one.connects(r)
		two.connects(r)
		r.publish(twice(webTiers(w, w.tier(8080, 9)), w))
		lost := []packet{one.asks(1000, "PA", "hello"), two.asks(2000, "PA", "hello")}
		for _, in := range lost {
			r.expect(fromPod, in, "translate_established")
		}
		r.lostFor(retryAfter)
		for _, in := range lost {
			r.reset(in)
		}
	}, lb.TCP)
}

// like is an address, and a port, that were as good as a connection's own to rows that went by sums of addresses and ports which everybody can
// compute: of such sums alone the low half of an IPv6 address is free to choose.
func (c talk) like(sum func(client netip.AddrPort) uint64, port uint16) netip.AddrPort {
	bytes := at(c.in.src.Addr(), 0).Addr().As16()
	bytes[7]++
	low := binary.LittleEndian.Uint64(bytes[8:]) ^ sum(c.in.src) ^ sum(at(netip.AddrFrom16(bytes), port))
	binary.LittleEndian.PutUint64(bytes[8:], low)
	return at(netip.AddrFrom16(bytes), port)
}

func words(a netip.Addr) (first, second uint64) {
	bytes := a.As16()
	return binary.LittleEndian.Uint64(bytes[:8]), binary.LittleEndian.Uint64(bytes[8:])
}

// In a network whose addresses a stranger may have as many of as it likes.
func forEachDoorOfIPv6(t *testing.T, test func(*testing.T, *rig, world), protocol lb.Protocol) {
	t.Helper()
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		if w.v6 {
			test(t, r, w)
		}
	}, protocol)
}

func TestAStrangersDatagramsTakeNobodysFlowToAnotherBackend(t *testing.T) {
	forEachDoorOfIPv6(t, func(t *testing.T, r *rig, w world) {
		r.seed(1)
		r.publish(asking(webTiers(w, w.tier(8080, 2, 3, 4)), 3))
		c := r.open(w, 41000)
		c.answered(r)
		sum := func(client netip.AddrPort) uint64 {
			first, second := words(client.Addr())
			return second ^ first*0x9e3779b97f4a7c15 ^ uint64(uint32(swap(client.Port()))<<16|uint32(swap(c.in.dst.Port())))*0xbf58476d1ce4e5b9
		}
		for port := range uint16(64) {
			stranger := r.start(c.in.from(c.like(sum, 20000+port)))
			if stranger.out.dst != c.out.dst {
				continue
			}
			for range 3 {
				stranger.sends(r, "translate_established")
			}
			r.askedFor(retryAfter)
			if again := c.sends(r, "translate_established"); !again.same(c) {
				t.Errorf("left to %s, after datagrams of %s to %s", c.out.dst, stranger.in.src, again.out.dst)
			}
			return
		}
		t.Error("no stranger has the same backend")
	}, lb.UDP)
}

func TestAStrangersSYNLeavesThatOfAnotherWhereItIsKept(t *testing.T) {
	forEachDoorOfIPv6(t, func(t *testing.T, r *rig, w world) {
		r.seed(1)
		r.forgetSYNs()
		r.publish(retrying(webTiers(w, w.tier(8080, 2, 3, 4))))
		c := r.open(w, 41000)
		sum := func(client netip.AddrPort) uint64 {
			first, second := words(client.Addr())
			return second ^ first*0x9e3779b97f4a7c15 ^ uint64(uint32(swap(client.Port()))<<16|uint32(swap(c.in.dst.Port())))*0xd6e8feb86659fd93
		}
		stranger := c.in.from(c.like(sum, 20000))
		stranger.seq = 7
		r.start(stranger)
		r.becomes(c.out.reply("RA", ""), c.in)
		c.again(r, 0, "translate_retry").connects(r)
	}, lb.TCP)
}
