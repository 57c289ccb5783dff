// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// A masquerade, and a socket of the host, may have a port that is a NodePort as well (fully-random takes any from 1024 on). What their peer
// answers is no client's, whatever the Service does with clients.

// peer is who the masquerade or the socket talks to.
func (w world) peer() netip.AddrPort { return at(w.outside(6), 443) }

// taken is the node's end of that: a NodePort.
func (w world) taken() netip.AddrPort { return at(w.own(), 30080) }

// answer is the first packet of the peer's: in the middle of a connection.
func (w world) answer() packet { return w.packet(w.peer(), w.taken()).with("A", "answer") }

// nodePorts are Services at that NodePort, by what they do with clients: the verdict of a first packet.
func nodePorts(w world) map[string]lb.Decision {
	of := func(change func(*service)) lb.Decision {
		s := service{name: "port", kind: lb.KindNodePort, address: w.taken(), tiers: tiersOf(w.tier(8080, 2)), remote: true}
		change(&s)
		return w.decide(s)
	}
	return map[string]lb.Decision{
		"translate_balance":       of(func(*service) {}),
		"reject_no_endpoints":     of(func(s *service) { s.tiers, s.action, s.reason = nil, lb.Reject, lb.ReasonNoEndpoints }),
		"drop_no_local_endpoints": of(func(s *service) { s.tiers, s.action, s.reason = nil, lb.Drop, lb.ReasonNoLocalEndpoints }),
		"drop_source_range":       of(func(s *service) { s.ranges = []netip.Prefix{netip.PrefixFrom(w.outside(7), w.outside(7).BitLen())} }),
	}
}

// forEachNodePort runs a test with each of them.
func forEachNodePort(t *testing.T, o bpf.Options, test func(s site, w world, verdict string)) {
	t.Helper()
	forEachSite(t, o, func(s site, w world) {
		onOneProcessor(s)
		for verdict, d := range nodePorts(w) {
			untrack(s)
			s.forget()
			s.publish(d)
			if test(s, w, verdict); s.Failed() {
				s.Errorf("where a client's first packet is %s", verdict)
				return
			}
		}
	}, lb.TCP, lb.UDP)
}

// unasked has programs not ask connection tracking.
func unasked() bpf.Options { return bpf.Options{Knobs: map[string]any{"conntrack_lookup": uint8(0)}} }

// eitherWay are programs that ask connection tracking, and such that do not.
func eitherWay() map[string]bpf.Options {
	return map[string]bpf.Options{"asked": {}, "not to be asked": only(unasked(), bpf.NearlbProgFromNet, bpf.NearlbProgFromNetReply, // and what reads the knob
		bpf.NearlbProgFromNetSlow, bpf.NearlbProgFromPodSlow, bpf.NearlbProgToPod, bpf.NearlbProgToNet, bpf.NearlbProgHostOut)}
}

// answersPass wants everything that the peer may send to pass, at XDP and TC, and to leave no flow.
func (s site) answersPass(w world, flags ...string) {
	s.Helper()
	for _, f := range flags {
		p := w.answer().with(f, "answer")
		for range 2 {
			s.passesXDP("an answer", p.bytes())
		}
		for _, change := range changes(w) {
			s.expectPlain(change(p), "pass_unknown_reply")
		}
		if s.Failed() {
			return
		}
		parts := pieces(long(p), 9)
		s.expectPlain(parts[0], "pass_unknown_reply")
		s.expectPlain(parts[1], "pass_fragment")
	}
	if flows := s.liveFlows(); len(flows) > 0 {
		s.Errorf("answers left flows: %v", flows)
	}
}

// anything is what a peer may send that has answered.
func anything() []string { return []string{"SA", "A", "PA", "FA", "R", "RA"} }

// E5, of what a CNI masquerades.
func TestAnswersToAMasqueradeAtANodePortPass(t *testing.T) {
	forEachNodePort(t, bpf.Options{}, func(s site, w world, _ string) {
		for _, yield := range []maps.Yield{maps.YieldNothing, maps.YieldOld, maps.YieldOld | maps.YieldNew} {
			check(s, s.tables.Configure(s.withYield(yield)))
			for _, status := range []uint32{0, seenReply, seenReply | assured} {
				untrack(s)
				track(s, w.protocol, at(w.pod(7), 5000), w.peer(), w.peer(), w.taken(), status)
				s.answersPass(w, anything()...)
			}
		}
		s.configure(snatPorts())
	})
}

// connected is a socket of the host from the NodePort to the peer.
func (s site) connected(w world) (fd int) {
	s.Helper()
	kind := map[lb.Protocol]int{lb.TCP: unix.SOCK_STREAM, lb.UDP: unix.SOCK_DGRAM}[w.protocol]
	fd, err := unix.Socket(map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[w.v6], kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	check(s, err)
	check(s, unix.Bind(fd, sockaddrOf(w.taken())))
	if err := unix.Connect(fd, sockaddrOf(w.peer())); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		s.Fatal(err)
	}
	return fd
}

func TestAnswersToASocketOfTheHostAtANodePortPass(t *testing.T) {
	for name, o := range eitherWay() {
		t.Run(name, func(t *testing.T) {
			forEachNodePort(t, o, func(s site, w world, _ string) {
				fd := s.connected(w)
				untrack(s)
				s.answersPass(w, anything()...)
				check(s, unix.Close(fd))
			})
		})
	}
}

// No client begins with a SYN-ACK: it answers somebody, whether or not anybody can say whom.
func TestASYNACKToANodePortPasses(t *testing.T) {
	for name, o := range eitherWay() {
		t.Run(name, func(t *testing.T) {
			forEachNodePort(t, o, func(s site, w world, _ string) {
				if w.protocol == lb.TCP {
					s.answersPass(w, "SA")
				}
			})
		})
	}
}

// Where connection tracking cannot be asked, a SYN that leaves from a NodePort is remembered, so that all that answers it passes. A SYN of the peer
// is a client's. (Not datagrams: what this node sends on to clients leaves from there as well.)
func TestASYNFromANodePortWithoutConnectionTrackingIsAnswered(t *testing.T) {
	forEachNodePort(t, unasked(), func(s site, w world, verdict string) {
		if w.protocol == lb.UDP {
			return
		}
		syn := w.packet(w.taken(), w.peer())
		for range 2 {
			s.passes(toNet, syn, "pass_direct")
		}
		if flows := s.liveFlows(); len(flows) != 1 {
			s.Errorf("%d entries, want one", len(flows))
		}
		for _, flags := range []string{"SA", "A", "PA", "FA", "A"} {
			p := w.answer().with(flags, "answer")
			s.passesXDP("an answer", p.bytes())
			for _, change := range changes(w) {
				s.expectPlain(change(p), "pass_direct")
			}
			s.passes(toNet, syn.with("A", "more"), "pass_not_service")
		}
		s.client(w, w.packet(at(w.peer().Addr(), 444), w.taken()), verdict)
		s.client(w, w.packet(w.peer(), w.taken()), verdict)
	})
}

// What leaves from other ports, or answers a client, is not remembered, nor is anything where connection tracking can be asked.
func TestNothingElseThatLeavesIsRemembered(t *testing.T) {
	for name, o := range eitherWay() {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, o, func(s site, w world) {
				s.publish(nodePorts(w)["translate_balance"])
				s.passes(toNet, w.packet(at(w.own(), 30081), w.peer()), "pass_not_service")
				s.passes(toNet, w.packet(at(w.pod(7), 30080), w.peer()), "pass_not_service")
				if name == "asked" || w.protocol == lb.UDP {
					s.passes(toNet, w.packet(w.taken(), w.peer()), "pass_not_service")
				}
				if flows := s.liveFlows(); len(flows) > 0 {
					s.Errorf("entries: %v", flows)
				}
				c := s.remote(w.packet(at(w.outside(1), 41000), w.taken()), "translate_balance")
				entries := len(s.liveFlows())
				s.passes(toNet, c.in.reply("PA", "yes"), "pass_not_service") // as it leaves after from_net has routed it
				if flows := s.liveFlows(); len(flows) != entries {
					s.Errorf("entries: %v", flows)
				}
				s.goesOn(c, "translate_established")
			}, lb.TCP, lb.UDP)
		})
	}
}

// client wants the first packet of a client to have the verdict.
func (s site) client(w world, in packet, verdict string) {
	s.Helper()
	if got, err := s.run(fromPod, in.bytes()); err != nil || got.verdict != verdict {
		s.Errorf("%s to %s: verdict %s, want %s; %v", in.src, in.dst, got.verdict, verdict, err)
	}
}

// lost is the verdict of a packet in the middle of a connection that no flow has, where a first packet has this one.
func (w world) lost(verdict string) string {
	if w.protocol == lb.TCP && class(verdict) == bpf.Translate {
		return "translate_recover"
	}
	return verdict
}

// Clients of the NodePort go to its Service from the first packet on and from any later one, or are refused by it, whatever else is at its port:
// masquerades and sockets that talk to others, a socket that listens, and connections that connection tracking knows from their own side.
func TestClientsOfANodePortAreItsServicesWhateverElseIsThere(t *testing.T) {
	for name, o := range eitherWay() {
		t.Run(name, func(t *testing.T) {
			forEachNodePort(t, o, func(s site, w world, verdict string) {
				client := at(w.outside(1), 41000)
				track(s, w.protocol, at(w.pod(7), 5000), w.peer(), w.peer(), w.taken(), seenReply|assured)
				track(s, w.protocol, client, w.taken(), w.taken(), client, seenReply|assured)
				for _, open := range []func(world) int{s.connected, s.listens} {
					fd := open(w)
					if class(verdict) == bpf.Drop && w.protocol == lb.UDP {
						check(s, errors.Join(drain(s.objects.Events), zero(s.objects.EventBudgets)))
						s.dropsAtXDP(w.packet(client, w.taken()), verdict)
					}
					s.client(w, w.packet(client, w.taken()), verdict)
					for _, flags := range []string{"A", "PA", "FA", "R"} {
						s.forget()
						s.client(w, w.packet(client, w.taken()).with(flags, "more"), w.lost(verdict))
					}
					s.forget()
					check(s, unix.Close(fd))
				}
			})
		})
	}
}

// listens is a socket of the host that takes what comes to the NodePort from anybody.
func (s site) listens(w world) (fd int) {
	s.Helper()
	return hostSockets()[0].open(s, w, w.taken().Port())
}

// The same at the door of a pod: what it answers to a socket of the host, as a kubelet's that probes it.
func TestAnswersOfPodsAtANodePortPass(t *testing.T) {
	playTracked(t, bpf.Options{}, []story{{"an answer", []lb.Protocol{lb.TCP, lb.UDP}, func(r *rig, w world) {
		front := at(w.node(), 30080)
		r.publish(w.decide(service{name: "port", kind: lb.KindNodePort, address: front, tiers: tiersOf(w.tier(8080, 2))}))
		answer := w.packet(at(w.pod(1), 8081), front)
		track(r, w.protocol, front, answer.src, answer.src, front, seenReply)
		for _, flags := range anything() {
			r.expect(fromPod, answer.with(flags, "answer"), "pass_unknown_reply")
		}
		r.expect(fromPod, w.packet(at(w.pod(1), 8082), front), "translate_balance")
	}}})
}
