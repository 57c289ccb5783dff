// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// age makes flows so old, by client port, as if they had been made just now: how long that took does not count.
func (r *rig) age(to map[uint16]time.Duration) {
	r.Helper()
	r.editFlows(func(f *bpf.NearlbFlow) {
		if seconds := to[swap(f.KeyPort)] / time.Second; seconds > 0 {
			f.Touched = bpf.Jiffies() - uint32(seconds)*bpf.JiffiesPerSecond()
		}
	})
}

// ageAll makes all flows older.
func (r *rig) ageAll(by time.Duration) {
	r.Helper()
	r.editFlows(func(f *bpf.NearlbFlow) { f.Touched -= uint32(by/time.Second) * bpf.JiffiesPerSecond() })
}

func swap(port uint16) uint16 { return port<<8 | port>>8 }

// The order in which a full set gives up its entries: expired, closed, unanswered, answered once, idle longest; never one that was active in
// the last minute.
func TestAFullSetGivesUpTheRightFlow(t *testing.T) {
	const minute = time.Minute
	type flow struct {
		answered, closed bool
		over             bool // a question that has its answer
		age              time.Duration
	}
	busy, idle, idler := flow{answered: true}, flow{answered: true, age: 5 * minute}, flow{answered: true, age: 10 * minute}
	closed, silent := flow{answered: true, closed: true}, flow{}
	expired := flow{age: 2 * minute} // unanswered: 60 s
	type row struct {
		name   string
		flows  [8]flow
		victim int // -1: nobody
	}
	rows := []row{
		{"an expired one first", [8]flow{busy, idle, closed, silent, idler, expired, idle, silent}, 5},
		{"then a closed one", [8]flow{busy, idle, closed, silent, idler, busy, idle, silent}, 2},
		{"then one without an answer", [8]flow{busy, idle, busy, busy, idler, busy, idle, silent}, 7},
		{"then the one that was idle longest", [8]flow{busy, idle, busy, busy, idler, busy, idle, busy}, 4},
		{"never one that is in use", [8]flow{busy, busy, busy, busy, busy, busy, busy, busy}, -1},
	}
	quiet, quieter := flow{answered: true, age: 40 * time.Second}, flow{answered: true, age: 50 * time.Second}
	asked, askedBefore := flow{over: true}, flow{over: true, age: 10 * time.Second}
	datagrams := []row{
		{"an expired one first", [8]flow{busy, quiet, silent, quieter, busy, expired, quiet, silent}, 5},
		{"then one without an answer", [8]flow{busy, quiet, busy, busy, quieter, busy, silent, busy}, 6},
		{"then the oldest that was answered, and never asked again", [8]flow{busy, quiet, asked, busy, quieter, askedBefore, asked, busy}, 5},
		{"then the one that was quiet longest", [8]flow{busy, quiet, busy, busy, quieter, busy, quiet, busy}, 4},
		{"never one that is in use", [8]flow{busy, busy, busy, busy, busy, busy, busy, busy}, -1},
	}
	r := newRig(t, unhurried(1))
	for protocol, rows := range map[lb.Protocol][]row{lb.TCP: rows, lb.UDP: datagrams} {
		for _, row := range rows {
			t.Run(protocol.String()+"/"+row.name, func(t *testing.T) {
				for _, w := range worlds(protocol) {
					r := r.in(t)
					r.publish(web(w)...)
					ages := map[uint16]time.Duration{}
					for i, f := range row.flows {
						port := uint16(41000 + i)
						ages[port] = f.age
						in := w.packet(at(w.pod(1), port), at(w.vip(10), 80))
						if f.over {
							c := r.start(in)
							c.answered(r)
							continue
						}
						r.live(in, f.answered, f.closed)
					}
					r.age(ages)
					want := map[bool]string{true: "drop_flows_full", false: "translate_balance"}[row.victim < 0]
					r.expect(fromPod, w.packet(at(w.pod(1), 50000), at(w.vip(10), 80)), want)
					left := map[uint16]bool{}
					for _, f := range r.liveFlows() {
						left[swap(f.KeyPort)] = true
					}
					for i := range row.flows {
						if port := uint16(41000 + i); left[port] == (i == row.victim) {
							t.Errorf("%s: flow %d is there: %v; want flow %d to go", w, i, left[port], row.victim)
						}
					}
				}
			})
		}
	}
}

// live starts a connection and takes it so far.
func (r *rig) live(in packet, answered, closed bool) {
	r.Helper()
	c := r.start(in)
	if answered {
		c.goOn(r, "translate_established", "translate_reply")
		r.age(map[uint16]time.Duration{in.src.Port(): 2 * time.Second}) // UDP: no question alone
		c.goOn(r, "translate_established", "translate_reply")
	}
	if closed {
		r.expect(fromPod, c.in.with("RA", ""), "translate_established")
	}
}

// A flood of ten times the table's size in first packets leaves established connections alone.
func TestAFloodLeavesEstablishedConnectionsAlone(t *testing.T) {
	forEachWorld(t, unhurried(16), func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2, 3, 4))}))
		var kept []talk
		for i := range uint16(48) {
			c := r.start(w.packet(at(w.pod(1), 41000+i), at(w.vip(10), 80)))
			if c.out.dst == c.in.dst {
				continue // its set was full
			}
			c.goOn(r, "translate_established", "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
			kept = append(kept, c)
		}
		if len(kept) < 40 {
			t.Fatalf("%d of 48 connections found room", len(kept))
		}
		for i := range 10 * 16 * 8 {
			in := w.packet(at(w.pod(10+i/400), uint16(1024+i%400)), at(w.vip(10), 80))
			if got, _ := r.try(fromPod, in.bytes()); got.verdict != "translate_balance" && got.verdict != "drop_flows_full" {
				t.Fatalf("first packet of the flood: %s", got.verdict)
			}
		}
		for _, c := range kept {
			c.goOn(r, "translate_established", "translate_reply")
		}
	}, lb.TCP, lb.UDP)
}

// An expired entry is no flow: a packet in the middle of the connection makes it again.
func TestAnExpiredFlowIsMadeAgain(t *testing.T) {
	rows := []struct {
		name     string
		protocol lb.Protocol
		answered bool
		age      time.Duration
		forward  string
	}{
		{"unanswered UDP after 20 s", lb.UDP, false, 20 * time.Second, "translate_established"},
		{"unanswered UDP after 35 s", lb.UDP, false, 35 * time.Second, "translate_balance"},
		{"answered UDP after 20 s", lb.UDP, true, 20 * time.Second, "translate_established"},
		{"answered UDP after 35 s", lb.UDP, true, 35 * time.Second, "translate_balance"},
		{"unanswered TCP after 50 s", lb.TCP, false, 50 * time.Second, "translate_established"},
		{"unanswered TCP after 70 s", lb.TCP, false, 70 * time.Second, "translate_recover"},
		{"established TCP after 23 h", lb.TCP, true, 23 * time.Hour, "translate_established"},
		{"established TCP after 25 h", lb.TCP, true, 25 * time.Hour, "translate_recover"},
	}
	r := newRig(t, bpf.Options{})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, w := range worlds(row.protocol) {
				r := r.in(t)
				r.publish(web(w)...)
				in, _ := webPackets(w)
				c := r.start(in)
				if row.answered {
					c.goOn(r, "translate_established", "translate_reply")
					c.goOn(r, "translate_established", "translate_reply")
				}
				r.age(map[uint16]time.Duration{41000: row.age})
				step{hook: fromPod, in: in.with("A", "x"), verdict: row.forward, out: became(c.out.with("A", "x"))}.play(r, 1)
			}
		})
	}
}

// UDP is a question and its answer until packets come for more than a second, of the client or of the server; then it is kept as long as
// connection tracking keeps a stream. Its twin is, too.
func TestUDPThatGoesOnIsKeptLonger(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		asked, client := r.start(in), r.start(in.to(at(w.vip(11), 80)))
		server := r.start(w.packet(at(w.pod(1), 42000), at(w.vip(10), 80)))
		late := r.start(w.packet(at(w.pod(1), 43000), at(w.vip(10), 80)))
		for _, c := range []talk{asked, client, server} {
			c.goOn(r, "translate_established", "translate_reply")
			c.goOn(r, "translate_established", "translate_reply")
		}
		r.ageAll(2 * time.Second)
		step{hook: fromPod, in: client.in.with("A", "more"), verdict: "translate_established", out: became(client.out.with("A", "more"))}.play(r, 1)
		server.answered(r)
		late.answered(r) // once: the server took its time
		r.ageAll(40 * time.Second)
		r.expect(fromPod, late.in, "translate_balance")
		for _, pause := range []time.Duration{100 * time.Second, 170 * time.Second} {
			r.ageAll(pause)
			client.goOn(r, "translate_established", "translate_reply")
			server.goOn(r, "translate_established", "translate_reply")
		}
		r.expect(fromPod, asked.in, "translate_balance")
		r.ageAll(190 * time.Second)
		r.expect(fromPod, client.in, "translate_balance")
	}, lb.UDP)
}

// What a connection has shown does not stick to the next one on the same ports, and one side's FIN is not its end.
func TestTheLifeOfATCPFlow(t *testing.T) {
	type event struct {
		reply bool
		flags string
	}
	handshake := []event{{false, "S"}, {true, "SA"}, {false, "A"}}
	rows := []struct {
		name   string
		events []event
		age    time.Duration
		lives  bool
	}{
		{"established", handshake, time.Hour, true},
		{"closed from both sides", []event{{false, "S"}, {true, "SA"}, {false, "A"}, {false, "FA"}, {true, "FA"}, {false, "A"}}, 15 * time.Second, false},
		{"reset by the client", []event{{false, "S"}, {true, "SA"}, {false, "A"}, {false, "RA"}}, 15 * time.Second, false},
		{"reset by the server", []event{{false, "S"}, {true, "RA"}}, 15 * time.Second, false},
		{"half closed by the client", []event{{false, "S"}, {true, "SA"}, {false, "A"}, {false, "FA"}, {true, "A"}}, time.Hour, true},
		{"half closed by the server", []event{{false, "S"}, {true, "SA"}, {false, "A"}, {true, "FA"}, {false, "A"}}, time.Hour, true},
		{"opened again after its end", append([]event{{false, "S"}, {true, "SA"}, {false, "A"}, {false, "FA"}, {true, "FA"}, {false, "A"}}, handshake...), time.Hour, true},
		{"opened again after a reset", append([]event{{false, "S"}, {true, "RA"}}, handshake...), time.Hour, true},
		{"reset from outside the window: the client goes on", slices.Concat(handshake, []event{{false, "R"}, {false, "A"}}), time.Hour, true},
		{"reset from outside the window: the server goes on", slices.Concat(handshake, []event{{true, "RA"}, {true, "A"}}), time.Hour, true},
		{"reset, while the server's data was on its way", slices.Concat(handshake, []event{{false, "RA"}, {true, "PA"}, {false, "R"}}), 15 * time.Second, false},
		{"opened again after the client's FIN, then closed by the server", slices.Concat(handshake, []event{{false, "FA"}}, handshake, []event{{true, "FA"}}), time.Hour, true},
		{"opened again after the server's FIN, then closed by the client", slices.Concat(handshake, []event{{true, "FA"}}, handshake, []event{{false, "FA"}}), time.Hour, true},
		{"made again by the client, the server answers", []event{{false, "A"}, {true, "A"}}, time.Hour, true},
		{"made again by the client, the server has not answered", []event{{false, "A"}}, 2 * time.Minute, false},
		{"made again by the client, the server resets", []event{{false, "A"}, {true, "R"}}, 15 * time.Second, false},
		{"no answer yet", []event{{false, "S"}}, 2 * time.Minute, false},
		{"answered, the client not heard of again", []event{{false, "S"}, {true, "SA"}}, 2 * time.Minute, false},
	}
	r := newRig(t, bpf.Options{})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, w := range worlds(lb.TCP) {
				r := r.in(t)
				r.publish(web(w)...)
				in, out := webPackets(w)
				for _, e := range row.events {
					if e.reply {
						r.expect(toPod, out.reply(e.flags, ""), "translate_reply")
					} else if got, _ := r.try(fromPod, in.with(e.flags, "").bytes()); class(got.verdict) != bpf.Translate {
						t.Errorf("%s: %s", e.flags, got.verdict)
					}
				}
				r.age(map[uint16]time.Duration{41000: row.age})
				want := map[bool]string{true: "translate_reply", false: "pass_not_service"}[row.lives]
				r.expect(toPod, out.reply("A", "x"), want)
			}
		})
	}
}

// SCTP's INIT ACK is an answer to whoever claimed to be the client, as a SYN with ACK is.
func TestAnSCTPServersFirstAnswerEstablishesNothing(t *testing.T) {
	chunk := func(kind byte) string { return string(append([]byte{kind, 0, 0, 20}, make([]byte, 16)...)) }
	const initAck, cookieEcho, cookieAck = 2, 10, 11
	for name, lives := range map[string]bool{"INIT, INIT ACK": false, "the whole handshake": true} {
		t.Run(name, func(t *testing.T) {
			runRows(t, []row{{name: name, worlds: worlds(lb.SCTP), services: web, steps: func(w world) []step {
				in, out := webPackets(w)
				answer, goOn := out.reply("", chunk(initAck)), in.with("", chunk(cookieEcho))
				steps := []step{
					{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
					{hook: toPod, in: answer, verdict: "translate_reply", out: became(answer.from(in.dst))},
				}
				done := out.reply("", chunk(cookieAck))
				if lives {
					steps = append(steps, step{hook: fromPod, in: goOn, verdict: "translate_established", out: became(goOn.to(out.dst))},
						step{hook: toPod, in: done, verdict: "translate_reply", out: became(done.from(in.dst))})
				}
				last := step{hook: toPod, in: done, verdict: "pass_not_service", do: func(r *rig) { r.age(map[uint16]time.Duration{41000: time.Hour}) }}
				if lives {
					last.verdict, last.out = "translate_reply", became(done.from(in.dst))
				}
				return append(steps, last)
			}}})
		})
	}
}

// A backend's id may be handed to another endpoint; a flow that remembers the former one is none.
func TestAFlowOfAnIDThatWasHandedOnIsNone(t *testing.T) {
	runRows(t, []row{{name: "another generation", services: web, steps: func(w world) []step {
		in, out := webPackets(w)
		verdict := map[lb.Protocol]string{lb.TCP: "translate_recover", lb.UDP: "translate_rehome"}[w.protocol]
		return []step{
			{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
			doing(func(r *rig) { r.editFlows(func(f *bpf.NearlbFlow) { f.Generation++ }) }),
			{hook: toPod, in: out.reply("A", ""), verdict: "pass_not_service"},
			{hook: fromPod, in: in.with("A", "x"), verdict: verdict, out: became(out.with("A", "x"))},
			{hook: toPod, in: out.reply("A", ""), verdict: "translate_reply", out: became(in.reply("A", ""))},
		}
	}}})
}
