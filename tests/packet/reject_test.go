// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// deny is a service whose every client gets the same answer.
func deny(action lb.Action, reason lb.Reason) func(world) []lb.Decision {
	return func(w world) []lb.Decision {
		return []lb.Decision{w.decide(service{name: "web", address: at(w.vip(10), 80), action: action, reason: reason})}
	}
}

func TestAServiceWithoutEndpointsRefusesTCPByReset(t *testing.T) {
	rows := []struct {
		name     string
		in       packet // flags, numbers, payload
		answer   string // flags; "": none
		seq, ack uint32
	}{
		{name: "SYN", in: packet{flags: "S", seq: 1000}, answer: "RA", seq: 0, ack: 1001},
		{name: "SYN at the end of the numbers", in: packet{flags: "S", seq: 0xffffffff}, answer: "RA", seq: 0, ack: 0},
		{name: "SYN with data", in: packet{flags: "S", seq: 1000, payload: []byte("early")}, answer: "RA", seq: 0, ack: 1006},
		{name: "data without ACK", in: packet{flags: "F", seq: 1000, payload: []byte("12")}, answer: "RA", seq: 0, ack: 1003},
		{name: "ACK", in: packet{flags: "A", seq: 1000, ack: 777, payload: []byte("data")}, answer: "R", seq: 777},
		{name: "FIN", in: packet{flags: "FA", seq: 1000, ack: 778}, answer: "R", seq: 778},
		{name: "RST", in: packet{flags: "R", seq: 1000}},
		{name: "RST with ACK", in: packet{flags: "RA", seq: 1000, ack: 5}},
	}
	r := newRig(t, bpf.Options{})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, w := range everywhere(lb.TCP) {
				r := r.in(t).at(w)
				r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
				in := row.in.from(at(w.pod(1), 41000)).to(at(w.vip(10), 80))
				in.protocol = lb.TCP
				for what, change := range changes(w) {
					if what == "empty" {
						continue
					}
					in := change(in)
					got, _ := r.try(fromPod, in.bytes())
					if row.answer == "" {
						if got.action != actShot {
							t.Errorf("%s, %s: verdict %s, action %d: a reset is not answered", w, what, got.verdict, got.action)
						}
						continue
					}
					if got.verdict != "reject_no_endpoints" {
						t.Fatalf("%s, %s: verdict %s", w, what, got.verdict)
					}
					checkReset(t, in, got, row.answer, row.seq, row.ack)
				}
			}
		})
	}
}

// checkReset compares an answer with the one of RFC 9293, 3.10.7.1.
func checkReset(t *testing.T, in packet, got outcome, flags string, seq, ack uint32) {
	t.Helper()
	src, dst := endpoints(t, got.frame)
	if src != in.dst || dst != in.src {
		t.Errorf("reset from %s to %s, want from %s to %s", src, dst, in.dst, in.src)
	}
	p, _ := parse(got.frame)
	tcp := p.transport
	if len(tcp) != int(tcp[12]>>4)*4 {
		t.Errorf("reset carries %d bytes behind its header of %d", len(tcp)-int(tcp[12]>>4)*4, int(tcp[12]>>4)*4)
	}
	want := map[string]byte{"RA": 0x14, "R": 0x04}[flags]
	if tcp[13] != want {
		t.Errorf("reset has flags %#x, want %#x", tcp[13], want)
	}
	if got := binary.BigEndian.Uint32(tcp[4:]); got != seq {
		t.Errorf("reset has sequence number %d, want %d", got, seq)
	}
	if got := binary.BigEndian.Uint32(tcp[8:]); flags == "RA" && got != ack {
		t.Errorf("reset acknowledges %d, want %d", got, ack)
	}
}

func TestAServiceWithoutEndpointsRefusesTheRestByPortUnreachable(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
		for _, size := range []int{0, 1, 2, 100, 600, 1400, 3000} {
			in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
			in.payload = bytes.Repeat([]byte{0xa5}, size)
			for _, change := range changes(w) {
				in := change(in)
				checkUnreachable(t, in, r.expect(fromPod, in, "reject_no_endpoints"))
				if w.v6 {
					in.headers = append(in.headers, extension{protocol: 44, body: []byte{0, 0, 0, 0x12, 0x34, 5, 6}})
					checkUnreachable(t, in, r.expect(fromPod, in, "reject_no_endpoints"))
				}
			}
		}
		first := pieces(long(w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))), 9)[0]
		checkUnreachable(t, first, r.expect(fromPod, first, "reject_no_endpoints"))
	}, lb.UDP, lb.SCTP)
}

// checkUnreachable: RFC 1122 and 4443: the error quotes the packet as the client sent it, as much as fits.
func checkUnreachable(t *testing.T, in packet, got outcome) {
	t.Helper()
	p, ok := parse(got.frame)
	if !ok {
		t.Fatalf("broken answer\n%s", show(got.frame))
	}
	kind, code, protocol, most := byte(3), byte(3), protocolICMP, 576
	if in.v6() {
		kind, code, protocol, most = 1, 4, protocolICMPv6, 1280
	}
	if p.protocol != protocol || p.transport[0] != kind || p.transport[1] != code {
		t.Errorf("answer is protocol %d, type %d, code %d; want %d, %d, %d", p.protocol, p.transport[0], p.transport[1], protocol, kind, code)
	}
	quoted, sent := p.transport[8:], in.network()
	if len(quoted) > len(sent) || !bytes.Equal(quoted, sent[:len(quoted)]) {
		t.Errorf("quoted packet differs from the one sent (%d of %d bytes)\n%s", len(quoted), len(sent), show(got.frame))
	}
	if least := len(sent) - len(in.transport()) + 8; len(quoted) < least {
		t.Errorf("%d bytes quoted, want %d or more", len(quoted), least)
	}
	if len(got.frame)-14 > most {
		t.Errorf("the answer has %d bytes, want %d or fewer", len(got.frame)-14, most)
	}
	if ttl := got.frame[14:][map[bool]int{false: 8, true: 7}[in.v6()]]; ttl < 32 {
		t.Errorf("the answer may travel %d hops", ttl)
	}
	if err := checkChecksums(got.frame); err != nil {
		t.Error(err)
	}
}

func TestEachRefusalHasItsOwnVerdict(t *testing.T) {
	to := func(port uint16, verdict string) func(world) []step {
		return func(w world) []step {
			return []step{doing(func(r *rig) {
				r.expect(fromPod, w.packet(at(w.pod(1), 41000), at(w.vip(10), port)), verdict)
				if len(r.liveFlows()) != 0 {
					r.Errorf("%s left a flow", verdict)
				}
			})}
		}
	}
	external := func(kind lb.Kind) func(w world) []lb.Decision {
		return func(w world) []lb.Decision {
			return []lb.Decision{w.decide(service{name: "web", kind: kind, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))})}
		}
	}
	passes := func(w world) []step {
		return []step{
			{hook: fromPod, in: w.packet(at(w.pod(1), 41000), at(w.outside(10), 81)), verdict: "pass_not_service"},
			{hook: fromPod, in: w.packet(at(w.pod(1), 41000), at(w.outside(10), 80)), verdict: "translate_balance", out: became(w.packet(at(w.pod(1), 41000), at(w.pod(2), 8080)))},
		}
	}
	runRows(t, []row{
		{name: "no endpoint of this topology (B2)", services: deny(lb.Reject, lb.ReasonNoTopologyMatch), steps: to(80, "reject_no_topology_match")},
		{name: "policy Local without local endpoints", services: deny(lb.Drop, lb.ReasonNoLocalEndpoints), steps: to(80, "drop_no_local_endpoints")},
		{name: "unknown port of a ClusterIP", services: web, steps: to(81, "reject_unknown_port")},
		{name: "the port of another protocol", services: web, worlds: worlds(lb.UDP), steps: func(w world) []step {
			return []step{doing(func(r *rig) {
				tcp := world{v6: w.v6, protocol: lb.TCP, door: w.door}
				r.expect(fromPod, tcp.packet(at(w.pod(1), 41000), at(w.vip(10), 80)), "reject_unknown_port")
			})}
		}},
		{name: "address of a service CIDR that no service has", services: web, steps: func(w world) []step {
			ping := packet{src: at(w.pod(1), 0), dst: at(w.vip(11), 0), protocol: w.icmp(), icmp: w.echo(true)}
			return []step{
				{hook: fromPod, in: w.packet(at(w.pod(1), 41000), at(w.vip(11), 80)), verdict: "drop_unallocated"},
				{hook: fromPod, in: ping, verdict: "drop_unallocated"},
			}
		}},
		{name: "unknown port of an external address", services: external(lb.KindExternalIP), steps: passes},
		{name: "a node port, and others of the node's address", services: external(lb.KindNodePort), steps: passes},
		{name: "unknown port of a load balancer address", services: external(lb.KindLoadBalancer), steps: passes},
	})
}

func TestSourceRangesAreKept(t *testing.T) {
	ranged := func(prefixes ...string) func(world) []lb.Decision {
		return func(w world) []lb.Decision {
			s := service{name: "web", kind: lb.KindLoadBalancer, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))}
			for _, p := range prefixes {
				if prefix := w.door.prefix(p); prefix.Addr().Is6() == w.v6 {
					s.ranges = append(s.ranges, prefix)
				}
			}
			return []lb.Decision{w.decide(s)}
		}
	}
	from := func(n int, verdict string) func(w world) []step {
		return func(w world) []step {
			in := w.packet(at(w.pod(n), 41000), at(w.outside(10), 80))
			return []step{{hook: fromPod, in: in, verdict: verdict, out: became(in.to(at(w.pod(2), 8080)))}}
		}
	}
	const one4, one6, net4, net6 = "10.244.1.1/32", "fd00:244:1::1/128", "10.244.1.0/24", "fd00:244:1::/64"
	runRows(t, []row{
		{name: "the one address", services: ranged(one4, one6), steps: from(1, "translate_balance")},
		{name: "another address", services: ranged(one4, one6), steps: from(3, "drop_source_range")},
		{name: "a network", services: ranged(net4, net6), steps: from(3, "translate_balance")},
		{name: "other networks", services: ranged("192.168.3.0/24", "203.0.113.0/24", "2001:db8::/32", "fd00:245::/32"), steps: from(1, "drop_source_range")},
	})
}

func (w world) icmp() lb.Protocol {
	if w.v6 {
		return protocolICMPv6
	}
	return protocolICMP
}

// echo is an echo request or its reply.
func (w world) echo(request bool) *icmp {
	m := icmp{kind: 0, rest: 0xbeef0001, body: []byte("0123456789abcdefghijklmnopqrstuvwxyz!")}
	switch {
	case w.v6 && request:
		m.kind = 128
	case w.v6:
		m.kind = 129
	case request:
		m.kind = 8
	}
	return &m
}

func TestAnEchoRequestToAServiceIsAnswered(t *testing.T) {
	r := newRig(t, bpf.Options{})
	for _, w := range everywhere(lb.TCP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t).at(w)
			external := service{name: "out", kind: lb.KindExternalIP, address: at(w.outside(10), 80), tiers: tiersOf(w.tier(8080, 2))}
			r.publish(append(web(w), w.decide(external))...)
			for _, address := range []netip.Addr{w.vip(10), w.outside(10)} {
				for _, size := range []int{0, 1, 37, 1400} {
					ping := packet{src: at(w.pod(1), 0), dst: at(address, 0), protocol: w.icmp(), icmp: w.echo(true)}
					ping.icmp.body = bytes.Repeat([]byte{7}, size)
					got := r.expect(fromPod, ping, "reject_echo")
					pong := ping
					pong.src, pong.dst, pong.icmp = ping.dst, ping.src, w.echo(false)
					pong.icmp.body = ping.icmp.body
					want := pong.back().bytes()
					if !bytes.Equal(blank(want, w), blank(got.frame, w)) {
						t.Errorf("echo reply from %s\nwant:\n%s\ngot:\n%s", address, show(want), show(got.frame))
					}
				}
			}
			ping := packet{src: at(w.pod(1), 0), dst: at(w.vip(10), 0), protocol: w.icmp(), icmp: w.echo(true)}
			got, _ := r.try(fromPod, lastHop(ping.bytes()))
			if ttl := got.frame[14:][map[bool]int{false: 8, true: 7}[w.v6]]; got.verdict != "reject_echo" || ttl < 32 {
				t.Errorf("%s: the reply to a request that came as far as it could may travel %d hops", got.verdict, ttl)
			}
			ping.dst = at(w.pod(2), 0)
			if got, _ := r.try(fromPod, ping.bytes()); class(got.verdict) != bpf.Pass {
				t.Errorf("echo request to a pod: %s", got.verdict)
			}
			pong := packet{src: at(w.vip(10), 0), dst: at(w.pod(1), 0), protocol: w.icmp(), icmp: w.echo(false)}
			if got, _ := r.try(toPod, pong.bytes()); class(got.verdict) != bpf.Pass {
				t.Errorf("echo reply on its way to the pod: %s", got.verdict)
			}
		})
	}
}

// blank takes out what the answering host chooses itself: hops, identification, traffic class, and the header checksum with them.
func blank(frame []byte, w world) []byte {
	f := slices.Clone(frame)
	if w.v6 {
		copy(f[14:], make([]byte, 4))
		f[14+7] = 0
		return f
	}
	f[14+1], f[14+4], f[14+5], f[14+8], f[14+10], f[14+11] = 0, 0, 0, 0, 0, 0
	return f
}
