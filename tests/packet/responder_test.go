// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// silence lets a heartbeat last for an hour: a test that is slow is no responder that is dead.
const silence = uint64(3600e9)

func patient() bpf.Options {
	return bpf.Options{Knobs: map[string]any{"responder_silence": silence}}
}

// beat is what the agent tells of its responder.
func (r *rig) beat(alive bool) {
	var now unix.Timespec
	check(r, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	if r.tables.Beat(0); alive {
		r.tables.Beat(uint64(now.Nano()))
	}
}

// responder has the sockets of one: on every address, as those of the world are none of this machine's.
type responder struct {
	stream  net.Listener
	packets net.PacketConn
	port    uint16
}

func startResponder(t testing.TB) *responder {
	t.Helper()
	for range 20 {
		stream, err := net.Listen("tcp", ":0")
		check(t, err)
		port := stream.Addr().(*net.TCPAddr).AddrPort().Port()
		packets, err := net.ListenPacket("udp", fmt.Sprintf(":%d", port))
		if err != nil { // somebody has the port
			check(t, stream.Close())
			continue
		}
		o := &responder{stream, packets, port}
		t.Cleanup(o.killed)
		return o
	}
	t.Fatal("no port is free for TCP and UDP")
	return nil
}

// killed is what the kernel does with the sockets of a process that ends.
func (o *responder) killed() {
	_, _ = o.stream.Close(), o.packets.Close()
}

func (o *responder) at(w world) netip.AddrPort { return at(w.node(), o.port) }

// before has the responder before the cluster's DNS.
func (o *responder) before(w world, tiers ...[]netip.AddrPort) service {
	return service{
		name: "kube-dns", address: at(w.vip(10), 53), tiers: append([][]netip.AddrPort{{o.at(w)}}, tiers...),
		states: map[netip.AddrPort]lb.State{o.at(w): lb.Responder},
	}
}

func TestQuestionsGoToTheNodesResponderWhileItLives(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		in, near, far := r.asks(w, own)
		step{hook: fromPod, in: in.with("A", "again"), verdict: "translate_established", out: became(near.with("A", "again"))}.play(r, 3)
		r.beat(false)
		r.asksElsewhere(w, in, near, far)
		r.beat(true)
		third := w.packet(at(w.pod(1), 41002), at(w.vip(10), 53))
		step{hook: fromPod, in: third, verdict: "translate_balance", out: became(third.to(near.dst))}.play(r, 7)
	}, lb.TCP, lb.UDP)
}

// asks has the responder answer a first question. It gives the question as it came, as the responder got it, and as the other server
// would have.
func (r *rig) asks(w world, own *responder) (in, near, far packet) {
	r.Helper()
	r.publish(w.decide(own.before(w, w.tier(53, 3))))
	in = w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
	near, far = in.to(own.at(w)), in.to(at(w.pod(3), 53))
	r.beat(true)
	step{hook: fromPod, in: in, verdict: "translate_balance", out: &near}.play(r, 1)
	step{hook: toPod, in: near.reply("SA", "answer"), verdict: "translate_reply", out: became(near.reply("SA", "answer").from(in.dst))}.play(r, 2)
	return in, near, far
}

// asksElsewhere goes on with a question that went near, and asks another one.
func (r *rig) asksElsewhere(w world, in, near, far packet) {
	r.Helper()
	if w.protocol == lb.UDP { // each question is decided anew
		step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_rehome", out: became(far.with("A", "dead"))}.play(r, 4)
		step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_established", out: became(far.with("A", "dead"))}.play(r, 5)
	} else { // the kernel of a process that is gone resets what is open
		step{hook: fromPod, in: in.with("A", "dead"), verdict: "translate_established", out: became(near.with("A", "dead"))}.play(r, 4)
		step{hook: fromPod, in: in, verdict: "translate_rehome", out: &far}.play(r, 5)
	}
	other := w.packet(at(w.pod(1), 41001), at(w.vip(10), 53))
	step{hook: fromPod, in: other, verdict: "translate_balance", out: became(other.to(far.dst))}.play(r, 6)
}

// The heart of a process that was killed seems to beat for a second more: its sockets are gone. Questions were refused meanwhile.
func TestNobodyAsksAResponderThatWasKilled(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		in, near, far := r.asks(w, own)
		own.killed()
		r.asksElsewhere(w, in, near, far)
	}, lb.TCP, lb.UDP)
}

func TestSessionAffinityKeepsNobodyWithAResponderThatWasKilled(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		s := own.before(w, w.tier(53, 3))
		s.affinity = 3 * time.Hour
		r.publish(w.decide(s))
		r.beat(true)
		asks := func(port uint16, verdict string, to netip.AddrPort) {
			in := w.packet(at(w.pod(1), port), at(w.vip(10), 53))
			step{hook: fromPod, in: in, verdict: verdict, out: became(in.to(to))}.play(r, int(port))
		}
		asks(41000, "translate_balance", own.at(w))
		asks(41001, "translate_affinity", own.at(w))
		own.killed()
		asks(41002, "translate_balance", at(w.pod(3), 53))
		asks(41003, "translate_affinity", at(w.pod(3), 53))
	}, lb.TCP, lb.UDP)
}

func TestAResponderThatIsSilentForASecondIsDead(t *testing.T) {
	forEachWorld(t, only(bpf.Options{}, bpf.NearlbProgFromPod, bpf.NearlbProgFromPodSlow), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		r.publish(w.decide(own.before(w, w.tier(53, 3))))
		r.tables.Beat(1) // long ago
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
		step{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(at(w.pod(3), 53)))}.play(r, 1)
	}, lb.TCP, lb.UDP)
}

func TestAResponderAnswersWithoutEndpointsOfTheClustersDNS(t *testing.T) {
	forEachWorld(t, patient(), func(t *testing.T, r *rig, w world) {
		own := startResponder(t)
		r.publish(w.decide(own.before(w)))
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53))
		r.beat(false)
		step{hook: fromPod, in: in, verdict: "drop_no_backend"}.play(r, 1)
		r.beat(true)
		step{hook: fromPod, in: in, verdict: "translate_balance", out: became(in.to(own.at(w)))}.play(r, 2)
	}, lb.TCP, lb.UDP)
}

func TestTheNodesOwnQuestionsGoToItsResponderWhileItLives(t *testing.T) {
	o := patient()
	o.Trace = true
	r := newRig(t, o)
	for _, w := range worlds(lb.TCP, lb.UDP) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t)
			check(r, r.tables.Configure(onNode(w)))
			own := startResponder(t)
			r.publish(w.decide(own.before(w, w.tier(53, 3))))
			r.beat(true)
			w.to(at(w.vip(10), 53), "translate_balance", own.at(w)).play(r, w)
			r.beat(false)
			w.to(at(w.vip(10), 53), "translate_balance", at(w.pod(3), 53)).play(r, w)
			r.beat(true)
			own.killed()
			w.to(at(w.vip(10), 53), "translate_balance", at(w.pod(3), 53)).play(r, w)
		})
	}
}
