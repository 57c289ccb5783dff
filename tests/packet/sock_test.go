// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// call is a connect of the node's own: a made packet stands for it, its source for the address of the socket.
type call struct {
	from, to netip.AddrPort
	verdict  string
	backends []netip.AddrPort // one of these; none: no backend
	unknown  bool             // no frontend
}

// callRow is a story of calls.
type callRow struct {
	name     string
	config   func(*maps.Config, world)
	services func(world) []lb.Decision
	calls    func(world) []call
}

// onNode is the configuration of a node whose addresses are known.
func onNode(w world) maps.Config {
	c := maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6()}
	if w.v6 {
		c.Node6, c.NodePort6 = w.node(), w.node()
	} else {
		c.Node4, c.NodePort4 = w.node(), w.node()
	}
	return c
}

// localhost is the n-th address of the loopback network; IPv6 has but one.
func (w world) localhost(n int) netip.Addr {
	if w.v6 {
		return netip.IPv6Loopback()
	}
	return w.addr("127.0.0.", "", n)
}

func (w world) unspecified() netip.Addr {
	if w.v6 {
		return netip.IPv6Unspecified()
	}
	return netip.IPv4Unspecified()
}

// socket is an unbound socket of the node: the address that it would get, and a port that tells sockets apart.
func (w world) socket(n uint16) netip.AddrPort { return at(w.node(), 41000+n) }

// to is a call of the first socket.
func (w world) to(dst netip.AddrPort, verdict string, backends ...netip.AddrPort) call {
	return call{from: w.socket(0), to: dst, verdict: verdict, backends: backends}
}

func (c call) of(from netip.AddrPort) call { c.from = from; return c }
func (c call) nobodys() call               { c.unknown = true; return c }

func playCalls(t *testing.T, rows []callRow) {
	t.Helper()
	r := newRig(t, traces())
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, w := range worlds(lb.TCP, lb.UDP) {
				t.Run(w.String(), func(t *testing.T) { row.play(r.in(t), w) })
			}
		})
	}
}

func (row callRow) play(r *rig, w world) {
	r.Helper()
	config := onNode(w)
	if row.config != nil {
		row.config(&config, w)
	}
	check(r, r.tables.Configure(config))
	if row.services != nil {
		r.publish(row.services(w)...)
	}
	for _, c := range row.calls(w) {
		c.play(r, w)
	}
	if flows := r.liveFlows(); len(flows) != 0 {
		r.Errorf("calls left the flows %v", flows)
	}
}

func (c call) play(r *rig, w world) {
	r.Helper()
	frame := w.packet(c.from, c.to).bytes()
	check(r, r.objects.Trace.Put(uint32(0), &bpf.NearlbTraceResult{}))
	got, err := r.run(sock, frame)
	check(r, err)
	var told bpf.NearlbTraceResult
	check(r, r.objects.Trace.Lookup(uint32(0), &told))
	if got.verdict != c.verdict || bpf.VerdictOf(told.Verdict).Name != c.verdict {
		r.Errorf("%s to %s: verdict %s, traced %s, want %s", c.from, c.to, got.verdict, bpf.VerdictOf(told.Verdict).Name, c.verdict)
		return
	}
	if !bytes.Equal(frame, got.frame) {
		r.Errorf("%s to %s: the packet changed:\n%s", c.from, c.to, show(got.frame))
	}
	goesOn := class(c.verdict) == bpf.Pass || class(c.verdict) == bpf.Translate
	if want := map[bool]action{true: actUnspec, false: actShot}[goesOn]; got.action != want {
		r.Errorf("%s to %s, %s: action %d, want %d", c.from, c.to, c.verdict, got.action, want)
	}
	c.checkTrace(r, told)
}

func (c call) checkTrace(r *rig, told bpf.NearlbTraceResult) {
	r.Helper()
	if (told.FrontendFound == 0) != c.unknown || (told.BackendFound != 0) != (len(c.backends) > 0) {
		r.Errorf("%s to %s, %s: traced %+v", c.from, c.to, c.verdict, told)
		return
	}
	if !c.unknown && told.Side != uint8(bpf.NearlbSideIndexSIDE_INTERNAL) {
		r.Errorf("%s to %s: side %d, want the internal one", c.from, c.to, told.Side)
	}
	if told.BackendFound == 0 {
		return
	}
	backend, source := r.backend(told.Backend), netip.AddrFrom16(told.Source.Bytes).Unmap()
	for _, b := range c.backends {
		if b == backend && source == c.from.Addr() {
			return
		}
	}
	r.Errorf("%s to %s: backend %s sees %s, want one of %v and the socket's own address", c.from, c.to, backend, source, c.backends)
}

// backend is the address of a backend by its number.
func (r *rig) backend(id uint32) netip.AddrPort {
	r.Helper()
	var b bpf.NearlbBackend
	check(r, r.objects.Backends.Lookup(id, &b))
	return at(netip.AddrFrom16(b.Address.Bytes).Unmap(), swap(b.Port))
}

// one is a decision of one service with these pods as backends.
func (w world) one(s service, pods ...int) []lb.Decision {
	s.name, s.address = or(s.name, "web"), or(s.address, at(w.vip(10), 80))
	if len(pods) > 0 {
		s.tiers = tiersOf(w.tier(8080, pods...))
	}
	return []lb.Decision{w.decide(s)}
}

func TestCallsOfTheNodesOwnSockets(t *testing.T) {
	playCalls(t, []callRow{
		{
			name:     "balance",
			services: func(w world) []lb.Decision { return w.one(service{}, 2, 3, 4) },
			calls: func(w world) []call {
				return []call{
					w.to(at(w.vip(10), 80), "translate_balance", w.tier(8080, 2, 3, 4)...),
					w.to(at(w.vip(10), 80), "translate_balance", w.tier(8080, 2, 3, 4)...).of(at(w.pod(9), 41000)), // bound to another address
				}
			},
		},
		{
			name: "the internal side decides at a NodePort too",
			services: func(w world) []lb.Decision {
				return w.one(service{kind: lb.KindNodePort, address: at(w.node(), 30080), external: func(s *lb.Side) {
					*s = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: lb.ListCluster}
				}}, 2)
			},
			calls: func(w world) []call {
				return []call{w.to(at(w.node(), 30080), "translate_balance", at(w.pod(2), 8080))}
			},
		},
		{
			name:     "reject",
			services: deny(lb.Reject, lb.ReasonNoEndpoints),
			calls:    func(w world) []call { return []call{w.to(at(w.vip(10), 80), "reject_no_endpoints")} },
		},
		{
			name:     "reject for want of a topology's match",
			services: deny(lb.Reject, lb.ReasonNoTopologyMatch),
			calls:    func(w world) []call { return []call{w.to(at(w.vip(10), 80), "reject_no_topology_match")} },
		},
		{
			name:     "drop",
			services: deny(lb.Drop, lb.ReasonNoLocalEndpoints),
			calls:    func(w world) []call { return []call{w.to(at(w.vip(10), 80), "drop_no_local_endpoints")} },
		},
		{
			name: "source ranges judge the socket's address",
			services: func(w world) []lb.Decision {
				ranges := []netip.Prefix{netip.PrefixFrom(w.node(), w.node().BitLen())}
				return w.one(service{kind: lb.KindLoadBalancer, ranges: ranges}, 2)
			},
			calls: func(w world) []call {
				return []call{
					w.to(at(w.vip(10), 80), "translate_balance", at(w.pod(2), 8080)),
					w.to(at(w.vip(10), 80), "drop_source_range").of(at(w.pod(9), 41000)),
				}
			},
		},
		{
			name:     "port that a ClusterIP has not",
			services: func(w world) []lb.Decision { return w.one(service{}, 2) },
			calls:    func(w world) []call { return []call{w.to(at(w.vip(10), 81), "reject_unknown_port").nobodys()} },
		},
		{
			name: "port that a load balancer's address has not",
			services: func(w world) []lb.Decision {
				return w.one(service{kind: lb.KindLoadBalancer, address: at(w.outside(1), 80)}, 2)
			},
			calls: func(w world) []call { return []call{w.to(at(w.outside(1), 81), "pass_not_service").nobodys()} },
		},
		{
			name:     "address of no Service inside the service range",
			services: func(w world) []lb.Decision { return w.one(service{}, 2) },
			calls:    func(w world) []call { return []call{w.to(at(w.vip(99), 80), "drop_unallocated").nobodys()} },
		},
		{
			name:     "straight to a server, and elsewhere",
			services: func(w world) []lb.Decision { return w.one(service{}, 2) },
			calls: func(w world) []call {
				return []call{
					w.to(at(w.pod(2), 8080), "pass_not_service").nobodys(),
					w.to(at(w.outside(1), 80), "pass_not_service").nobodys(),
					w.to(at(w.localhost(1), 80), "pass_not_service").nobodys(),
				}
			},
		},
		{
			name:     "disabled",
			config:   func(c *maps.Config, _ world) { c.Disabled = true },
			services: func(w world) []lb.Decision { return w.one(service{}, 2) },
			calls: func(w world) []call {
				return []call{w.to(at(w.vip(10), 80), "pass_disabled").nobodys(), w.to(at(w.vip(99), 80), "pass_disabled").nobodys()}
			},
		},
	})
}

func TestCallsOfLoopbackAddresses(t *testing.T) {
	nodePort := func(w world) []lb.Decision {
		return w.one(service{kind: lb.KindNodePort, address: at(w.node(), 30080)}, 2)
	}
	playCalls(t, []callRow{
		{
			name:     "all of them stand for the node's NodePorts",
			services: nodePort,
			calls: func(w world) []call {
				backend := at(w.pod(2), 8080)
				return []call{
					w.to(at(w.localhost(1), 30080), "translate_balance", backend),
					w.to(at(w.localhost(77), 30080), "translate_balance", backend),
					w.to(at(w.unspecified(), 30080), "translate_balance", backend),
					w.to(at(w.node(), 30080), "translate_balance", backend),
					w.to(at(w.localhost(1), 30081), "pass_not_service").nobodys(),
				}
			},
		},
		{
			name: "but for nothing else at the node's address",
			services: func(w world) []lb.Decision {
				return w.one(service{kind: lb.KindExternalIP, address: at(w.node(), 30080)}, 2)
			},
			calls: func(w world) []call {
				return []call{
					w.to(at(w.localhost(1), 30080), "pass_not_service").nobodys(),
					w.to(at(w.node(), 30080), "translate_balance", at(w.pod(2), 8080)),
				}
			},
		},
		{
			name:     "nor where no address answers NodePorts",
			config:   func(c *maps.Config, _ world) { c.NodePort4, c.NodePort6 = netip.Addr{}, netip.Addr{} },
			services: nodePort,
			calls:    func(w world) []call { return []call{w.to(at(w.localhost(1), 30080), "pass_not_service").nobodys()} },
		},
	})
}

// All of the node's sockets are one client, whatever address they are bound to.
func TestCallsOfTheNodeShareTheirAffinity(t *testing.T) {
	r := newRig(t, traces())
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			check(t, r.tables.Configure(onNode(w)))
			r.publish(w.decide(w.sticky("", 80, nil, 2)))
			first, other := at(w.pod(2), 8080), at(w.pod(3), 8080)
			vip := at(w.vip(10), 80)
			w.to(vip, "translate_balance", first).play(r, w)
			r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5, 6, 7, 8)))
			for n := range uint16(10) {
				w.to(vip, "translate_affinity", first).of(w.socket(n)).play(r, w)
			}
			w.to(vip, "translate_affinity", first).of(at(w.pod(9), 41000)).play(r, w)
			r.ageAffinity(3*time.Hour + time.Second)
			r.publish(w.decide(w.sticky("", 80, map[netip.AddrPort]lb.State{first: lb.Quiet}, 2, 3)))
			w.to(vip, "translate_balance", other).play(r, w)
			w.to(vip, "translate_affinity", other).of(w.socket(7)).play(r, w)
		})
	}
}

// The node's own time may be over as well (TestAClientWhoseTimeIsOverMayComeToAnotherBackend).
func TestCallsOfTheNodeMayComeToAnotherBackendWhenItsTimeIsOver(t *testing.T) {
	r := newRig(t, traces())
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			check(t, r.tables.Configure(onNode(w)))
			r.publish(w.decide(w.sticky("", 80, nil, 2, 3, 4, 5)))
			tier := w.tier(8080, 2, 3, 4, 5)
			for n := range uint16(24) {
				w.to(at(w.vip(10), 80), "translate_balance", tier...).of(w.socket(n)).play(r, w)
				r.ageAffinity(3*time.Hour + time.Second)
			}
			for _, backend := range tier {
				if r.backendCounted(backend).Connections == 24 {
					t.Errorf("24 times the node's time was over, and each time it came to %s", backend)
				}
			}
		})
	}
}

func TestCallsSpreadOverTheBackendsEachSocketOnItsOwn(t *testing.T) {
	r := newRig(t, traces())
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			check(t, r.tables.Configure(onNode(w)))
			r.publish(w.one(service{}, 2, 3, 4)...)
			before := r.serviceCounted()
			const sockets = 90
			for n := range uint16(sockets) {
				w.to(at(w.vip(10), 80), "translate_balance", w.tier(8080, 2, 3, 4)...).of(w.socket(n)).play(r, w)
			}
			if got := r.serviceCounted().Connections - before.Connections; got != sockets {
				t.Errorf("the service counted %d connections of %d", got, sockets)
			}
			sum := uint64(0)
			for _, backend := range w.tier(8080, 2, 3, 4) {
				got := r.backendCounted(backend).Connections
				if sum += got; got < sockets/6 {
					t.Errorf("%s got %d of %d connections", backend, got, sockets)
				}
			}
			if sum != sockets {
				t.Errorf("the backends counted %d connections of %d", sum, sockets)
			}
		})
	}
}

func TestCallsOfOtherProtocolsPass(t *testing.T) {
	r := newRig(t, traces())
	for _, w := range worlds(lb.SCTP) {
		r := r.in(t)
		check(t, r.tables.Configure(onNode(w)))
		r.publish(w.one(service{}, 2)...)
		w.to(at(w.vip(10), 80), "pass_protocol").nobodys().play(r, w)
	}
}
