// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// lostFor makes the packets that wait for a backend's acknowledgment so much older, and ones that came so often that one more is enough.
func (r *rig) lostFor(d time.Duration) {
	r.Helper()
	r.lost(d, 3)
}

func (r *rig) lost(d time.Duration, copies uint32) {
	r.Helper()
	for i := range r.objects.LostPackets.MaxEntries() {
		var p bpf.NearlbLostPacket
		check(r, r.objects.LostPackets.Lookup(i, &p))
		if p.Flow != 0 {
			p.Time -= uint32(d/time.Second) * bpf.JiffiesPerSecond()
			p.Copies = max(p.Copies, copies)
			check(r, r.objects.LostPackets.Put(i, &p))
		}
	}
}

// asks is a packet of the client's that the server has to acknowledge.
func (c talk) asks(seq uint32, flags, text string) packet {
	p := c.in.with(flags, text)
	p.seq, p.ack = seq, 0x0a0b0c0d
	return p
}

// reset wants the client to be told that its connection is no more: from the frontend, with the number that it expects next.
func (r *rig) reset(in packet) {
	r.Helper()
	got, _ := r.try(fromPod, in.bytes())
	if got.verdict != "reject_lost" {
		r.Fatalf("verdict %s, want reject_lost", got.verdict)
	}
	src, dst := endpoints(r, got.frame)
	p, ok := parse(got.frame)
	if !ok || got.action != actRedirect || src != in.dst || dst != in.src || p.transport[13] != 4 || binary.BigEndian.Uint32(p.transport[4:]) != in.ack {
		r.Errorf("action %d, answer\n%s", got.action, show(got.frame))
	}
}

// gone publishes web without the backend of the connection.
func (c talk) gone(r *rig, w world, keep bool) {
	r.Helper()
	d := webTiers(w, w.tier(8080, 9))
	d.KeepLost = keep
	r.publish(d)
}

// lasting is a connection to web's one backend that is established.
func (r *rig) lasting(w world, port uint16) talk {
	r.Helper()
	r.publish(webTiers(w, w.tier(8080, 2)))
	c := r.open(w, port)
	c.connects(r)
	return c
}

func TestAConnectionWhoseBackendIsGoneAndSilentIsReset(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		c := r.lasting(w, 41000)
		data := c.asks(1000, "PA", "hello")
		r.expect(fromPod, data, "translate_established")
		c.gone(r, w, false)
		r.expect(fromPod, data, "translate_established")
		r.lostFor(retryAfter / 4)
		r.expect(fromPod, data, "translate_established")
		r.lostFor(retryAfter)
		r.reset(data)
		for _, f := range r.liveFlows() {
			if f.Seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) == 0 {
				t.Errorf("flow %+v goes on", f)
			}
		}
		r.reset(data) // the first one was lost
		c = r.lasting(w, 41001)
		c.gone(r, w, false)
		fin := c.asks(1000, "FA", "")
		r.expect(fromPod, fin, "translate_established")
		r.lostFor(retryAfter)
		r.reset(fin)
	}, lb.TCP)
}

// A client on a slow way sends a packet again after a second: one that was lost behind this node is no evidence, nor are two.
func TestThreeCopiesOfAPacketResetNothing(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		c := r.lasting(w, 41000)
		c.gone(r, w, false)
		data := c.asks(1000, "PA", "hello")
		for range 3 {
			r.expect(fromPod, data, "translate_established")
			r.lost(retryAfter, 0)
		}
		r.reset(data)
	}, lb.TCP)
}

// Whatever the backend sends, to whomever: it talks.
func TestAConnectionWhoseBackendIsGoneAndTalksIsNotReset(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		c := r.lasting(w, 41000)
		other := r.open(w, 41001)
		c.gone(r, w, false)
		data := c.asks(1000, "PA", "hello")
		for _, speaks := range []talk{c, other} {
			r.expect(fromPod, data, "translate_established")
			r.lostFor(retryAfter)
			r.expect(toPod, speaks.out.reply("A", ""), "translate_reply")
			r.expect(fromPod, data, "translate_established")
		}
		r.lostFor(retryAfter)
		r.expect(fromPod, c.asks(1005, "PA", "more"), "translate_established")
		r.lostFor(retryAfter)
		r.publish(webTiers(w, w.tier(8080, 2))) // it is an endpoint again
		r.expect(fromPod, c.asks(1005, "PA", "more"), "translate_established")
	}, lb.TCP)
}

// Acknowledgments are not answered, nor is what looks like them, as a keepalive and a probe of a closed window with a byte at most; and a
// Service may ask that nothing is reset.
func TestWhatNeedsNoAnswerResetsNothing(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		c := r.lasting(w, 41000)
		c.gone(r, w, false)
		for _, p := range []packet{c.asks(1000, "A", ""), c.asks(999, "A", "x")} {
			for range 2 {
				r.expect(fromPod, p, "translate_established")
				r.lostFor(retryAfter)
			}
		}
		c = r.lasting(w, 41001)
		c.gone(r, w, true)
		for range 2 {
			r.expect(fromPod, c.asks(1000, "PA", "hello"), "translate_established")
			r.lostFor(retryAfter)
		}
		r.remove(lb.ServiceName{Namespace: "default", Name: "web"})
		r.expect(fromPod, c.asks(1000, "PA", "hello"), "translate_established")
	}, lb.TCP)
}

// A connection that is listed of an endpoint that does not serve is the kubelet's to end.
func TestABackendThatIsListedLosesNoConnection(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		c := r.lasting(w, 41000)
		for _, state := range []lb.State{lb.Quiet, lb.Draining} {
			r.publish(webOf(w, state, w.tier(8080, 3)))
			for range 2 {
				r.expect(fromPod, c.asks(1000, "PA", "hello"), "translate_established")
				r.lostFor(retryAfter)
			}
		}
	}, lb.TCP)
}

// The connection has two entries, whose packets XDP takes while its backend is an endpoint.
func TestAConnectionThroughSNATWhoseBackendIsGoneIsReset(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		s.goesOn(c, "translate_established")
		s.publish(far(w, 3))
		data := c.asks(1000, "PA", "hello")
		s.remote(data, "translate_established")
		s.lostFor(retryAfter)
		answer := c.out.reply("A", "")
		s.sends(answer, answer.from(c.in.dst).to(c.in.src), "translate_reply")
		s.remote(data, "translate_established")
		s.lostFor(retryAfter)
		s.reset(data)
		for _, f := range s.liveFlows() {
			if f.Seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) == 0 {
				s.Errorf("flow %+v goes on", f)
			}
		}
	}, lb.TCP)
}

// The node that the client comes by decides.
func TestAConnectionThroughTheTunnelWhoseBackendIsGoneIsReset(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		s.goesOnThrough(w, c)
		s.serve(w, nil, 3)
		for range 2 {
			s.lostFor(retryAfter)
			s.goesOnThrough(w, c)
		}
		data := c.asks(1000, "PA", "hello")
		there := s.enters(fromPod, data.bytes(), w.forward(routed(data), c.out.dst), "translate_established")
		s.lostFor(retryAfter)
		s.other.goes(fromPod, there, routed(c.out.with("PA", "hello").numbered(data)), "translate_established", actUnspec)
		s.reset(data)
	}, lb.TCP)
}

// numbered is p with the sequence numbers of another packet.
func (p packet) numbered(as packet) packet { p.seq, p.ack = as.seq, as.ack; return p }
