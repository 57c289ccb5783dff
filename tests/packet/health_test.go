// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// later lets time pass for flows and for what is known of backends.
func (r *rig) later(d time.Duration) {
	r.Helper()
	r.waited(d)
	jiffies := uint32(d/time.Second) * bpf.JiffiesPerSecond()
	r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) {
		h.Began -= jiffies
		for _, time := range []*uint32{&h.Answered, &h.Told, &h.OthersAt} {
			if *time != 0 { // never
				*time -= jiffies
			}
		}
		if h.Until != 0 {
			h.Until -= uint64(d)
		}
	})
}

// editHealth changes the rows of all backends that the tables have.
func (r *rig) editHealth(edit func(id uint32, h *bpf.NearlbBackendHealth)) {
	r.Helper()
	for id := range r.objects.BackendHealth.MaxEntries() {
		var b bpf.NearlbBackend
		check(r, r.objects.Backends.Lookup(id, &b))
		if b.State == 0 {
			continue
		}
		var h bpf.NearlbBackendHealth
		check(r, r.objects.BackendHealth.Lookup(id, &h))
		before := h
		if edit(id, &h); h != before {
			check(r, r.objects.BackendHealth.Put(id, &h))
		}
	}
}

// suspect names a backend as the programs do.
func (r *rig) suspect(backend netip.AddrPort) (s maps.Suspect) {
	r.Helper()
	for id := range r.objects.Backends.MaxEntries() {
		var b bpf.NearlbBackend
		if check(r, r.objects.Backends.Lookup(id, &b)); b.State != 0 && maps.AddrPortOf(b) == backend {
			s = maps.Suspect{ID: id, Generation: b.Generation}
		}
	}
	if s.ID == 0 {
		r.Fatalf("no backend %s", backend)
	}
	return s
}

// health is what is known of a backend.
func (r *rig) health(backend netip.AddrPort) maps.Evidence {
	r.Helper()
	e, known := r.tables.Evidence(r.suspect(backend))
	if !known {
		r.Fatalf("nothing is known of %s", backend)
	}
	return e
}

// told are the backends that the agent is told of, since it was told last.
func (r *rig) told() (all []maps.Suspect) {
	r.Helper()
	ring, err := maps.NewSuspectReader(&r.objects.NearlbMaps)
	check(r, err)
	defer func() { check(r, ring.Close()) }()
	check(r, ring.End())
	for {
		s, err := ring.Read()
		if errors.Is(err, ringbuf.ErrFlushed) {
			return all
		}
		check(r, err)
		all = append(all, s)
	}
}

// forgetHealth is as after a start.
func (r *rig) forgetHealth() {
	r.Helper()
	r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) { *h = bpf.NearlbBackendHealth{} })
	r.told()
}

// begins has the row be of the endpoint that has the id.
func (r *rig) begins(backend netip.AddrPort) maps.Suspect {
	r.Helper()
	s := r.suspect(backend)
	r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
		if id == s.ID {
			h.Generation = s.Generation
		}
	})
	return s
}

// leftOut is how long the agent leaves a backend out: longer than any test takes.
const leftOut = time.Hour

// eject has the agent leave a backend out.
func (r *rig) eject(backend netip.AddrPort) {
	r.Helper()
	s := r.begins(backend)
	refused, err := r.tables.Eject(s, bpf.BootNanoseconds()+uint64(leftOut), 1)
	if err != nil || refused != "" {
		r.Fatalf("leave %s out: %s %v", backend, refused, err)
	}
}

// silent opens a connection of a client that backend gets, and has it come again unanswered. It goes on from the last port.
func (r *rig) silent(w world, client int, port *uint16, backend netip.AddrPort) {
	r.Helper()
	for range 1000 {
		*port++
		c := r.start(w.packet(at(w.pod(client), *port), at(w.vip(10), 80)))
		if c.out.dst != backend {
			continue
		}
		r.later(retryAfter)
		r.expect(fromPod, c.in, "translate_retry")
		r.evict()
		return
	}
	r.Fatalf("no connection goes to %s", backend)
}

func TestTheAgentIsToldOfABackendThatDoesNotAnswer(t *testing.T) {
	for _, row := range []struct {
		name    string
		clients []int
		tells   bool
	}{
		{"two connections of two clients", []int{1, 9}, false},
		{"three connections of two clients", []int{1, 9, 9}, true},
		{"four connections of one client", []int{1, 1, 1, 1}, false},
		{"five connections of one client", []int{1, 1, 1, 1, 1}, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
				r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
				r.forgetHealth()
				port, dead := uint16(41000), at(w.pod(2), 8080)
				for i, client := range row.clients {
					if told := r.told(); len(told) > 0 {
						t.Errorf("told of %v after %d connections", told, i)
					}
					r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) {
						h.Began += uint32(retryAfter/time.Second) * bpf.JiffiesPerSecond()
					})
					r.silent(w, client, &port, dead)
				}
				told := r.told()
				if tells := len(told) == 1 && told[0] == r.suspect(dead); tells != row.tells || len(told) > 1 {
					t.Errorf("told of %v", told)
				}
				if e := r.health(dead); e.Unanswered != len(row.clients) || e.Until != 0 {
					t.Errorf("evidence %+v", e)
				}
				if !row.tells {
					return
				}
				if r.silent(w, 1, &port, dead); len(r.told()) != 1 {
					t.Error("not told again when a second is over")
				}
				s := r.suspect(dead)
				r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
					if id == s.ID {
						h.Told += uint32(retryAfter/time.Second) * bpf.JiffiesPerSecond() // the next SYN waits as long
					}
				})
				if r.silent(w, 1, &port, dead); len(r.told()) != 0 {
					t.Error("told again within a second")
				}
			}, lb.TCP)
		})
	}
}

// An answer to anybody since the SYN says that the server lives: that SYN was lost, or its client is not to come there.
func TestAnAnswerToAnybodyEndsTheEvidence(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2)))
		r.forgetHealth()
		alive := r.open(w, 42000)
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		port, server := uint16(41000), at(w.pod(2), 8080)
		for range 20 {
			r.silent(w, 1, &port, server)
			if e := r.health(server); e.Unanswered != 1 {
				t.Fatalf("evidence %+v", e)
			}
			r.start(alive.in)
			r.later(time.Second)
			r.publish(webTiers(w, w.tier(8080, 2)))
			r.evict()
			alive = r.open(w, 42000)
			alive.connects(r)
			r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
			r.later(time.Second)
		}
		if told := r.told(); len(told) > 0 {
			t.Errorf("told of %v", told)
		}
	}, lb.TCP)
}

func TestNewConnectionsLeaveABackendOut(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		r.forgetHealth()
		out := at(w.pod(2), 8080)
		var there []talk
		for port := range uint16(48) {
			if c := r.open(w, 41000+port); c.out.dst == out {
				c.connects(r)
				there = append(there, c)
			}
		}
		r.eject(out)
		for port := range uint16(256) {
			c := r.open(w, 42000+port)
			if c.out.dst == out {
				t.Errorf("a new connection goes to %s", out)
			}
			if again := c.again(r, retryAfter, "translate_retry"); again.out.dst == out {
				t.Errorf("a SYN that comes again goes to %s", out)
			}
		}
		if len(there) == 0 {
			t.Error("no connection went there before")
		}
		for _, c := range there {
			c.goOn(r, "translate_established", "translate_reply")
		}
		r.evict() // those that go on find it again
		for _, c := range there {
			c.goOn(r, "translate_recover", "translate_reply")
		}
		r.tables.Readmit(r.suspect(out))
		for port := uint16(43000); ; port++ {
			if r.open(w, port).out.dst == out {
				break
			}
			if port == 43300 {
				t.Fatal("no connection goes there after the end")
			}
		}
	}, lb.TCP)
}

// One of two is left out, and the client of a Service with session affinity came to it.
func TestAffinityLeavesABackendOut(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(w.decide(service{name: "web", address: at(w.vip(10), 80), affinity: time.Hour, tiers: tiersOf(w.tier(8080, 2, 3))}))
		r.forgetHealth()
		first := r.open(w, 41000)
		r.eject(first.out.dst)
		second := r.open(w, 41001)
		if second.out.dst == first.out.dst {
			t.Errorf("it goes to %s", second.out.dst)
		}
		r.tables.Readmit(r.suspect(first.out.dst))
		if third := r.open(w, 41002); third.out.dst != second.out.dst {
			t.Errorf("it goes to %s, then to %s", second.out.dst, third.out.dst)
		}
	}, lb.TCP)
}

// F2: however it came about that no other is left.
func TestWhereAllAreLeftOutAllAreTried(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		r.forgetHealth()
		outs := []netip.AddrPort{at(w.pod(2), 8080), at(w.pod(3), 8080), at(w.pod(4), 8080)}
		r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) { h.Until = bpf.BootNanoseconds() + uint64(leftOut) })
		for _, out := range outs {
			s := r.suspect(out)
			r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
				if id == s.ID {
					h.Generation = s.Generation
				}
			})
		}
		seen := map[netip.AddrPort]bool{}
		for port := range uint16(64) {
			c := r.open(w, 41000+port)
			seen[c.out.dst] = true
			seen[c.again(r, retryAfter, "translate_retry").out.dst] = true
		}
		if len(seen) != len(outs) {
			t.Errorf("tried are %v", seen)
		}
	}, lb.TCP)
}

// When its time is over, one connection in two seconds tries the backend; an answer puts it back.
func TestOneConnectionTriesABackendWhoseTimeIsOver(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		r.forgetHealth()
		out := at(w.pod(2), 8080)
		r.eject(out)
		for round := range 3 {
			r.later(2 * leftOut)
			began := time.Now()
			var tries []talk
			for port := range uint16(128) {
				if c := r.open(w, uint16(41000+1000*round)+port); c.out.dst == out {
					tries = append(tries, c)
				}
			}
			if most := 1 + int(time.Since(began)/(2*time.Second)); len(tries) == 0 || len(tries) > most {
				t.Fatalf("%d connections try it, want one in two seconds: %d at most", len(tries), most)
			}
			if e := r.health(out); e.Until <= bpf.BootNanoseconds() && time.Since(began) < trialTime { // else it may have ended again
				t.Errorf("its time ended at %d", e.Until)
			}
			if round == 2 {
				tries[0].connects(r)
			}
		}
		if e := r.health(out); e.Until != 0 {
			t.Errorf("it answered, and %+v", e)
		}
		if back := r.tables.Readmitted(); len(back) != 1 || back[0].Address != out {
			t.Errorf("told of %+v", back)
		}
	}, lb.TCP)
}

// The id of a backend that was left out goes to another endpoint, which is not.
func TestAnotherEndpointsTimeIsNotItsOwn(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3)))
		r.forgetHealth()
		r.eject(at(w.pod(2), 8080))
		r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) { h.Generation++ })
		seen := map[netip.AddrPort]bool{}
		for port := range uint16(64) {
			seen[r.open(w, 41000+port).out.dst] = true
		}
		if len(seen) != 2 {
			t.Errorf("connections go to %v", seen)
		}
	}, lb.TCP)
}

// F3: a client that never goes on after an answer, and one that floods: each answer counts, whatever the client makes of it.
func TestClientsThatNeverGoOnAreNoEvidence(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		r.forgetHealth()
		for port := range uint16(60) {
			c := r.open(w, 41000+port)
			r.expect(toPod, c.out.reply("SA", ""), "translate_reply")
			r.later(retryAfter)
			r.expect(fromPod, c.in, "translate_established")
		}
		for port := range uint16(60) { // nobody waits for what these would be answered
			r.open(w, 42000+port)
		}
		if told := r.told(); len(told) > 0 {
			t.Errorf("told of %v", told)
		}
		r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
			if h.Unanswered != 0 || h.Until != 0 {
				t.Errorf("backend %d: %+v", id, *h)
			}
		})
	}, lb.TCP)
}

// F3: a twentieth of all packets is lost, of SYNs and of answers, and servers get twenty connections in the second that a SYN waits.
func TestLossIsNoEvidence(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
		r.forgetHealth()
		random := rand.New(rand.NewPCG(1, 2))
		lost := func() bool { return random.IntN(20) == 0 }
		var waits []talk
		for second := range 60 {
			for _, c := range waits {
				r.expect(fromPod, c.in, "translate_retry")
			}
			waits = nil
			r.evict()
			for i := range 60 {
				c := r.open(w, uint16(20000+60*second+i))
				there, back := lost(), lost()
				if there || back {
					waits = append(waits, c)
				} else {
					r.expect(toPod, c.out.reply("SA", ""), "translate_reply")
				}
			}
			r.later(retryAfter)
		}
		if told := r.told(); len(told) > 0 {
			t.Errorf("told of %v", told)
		}
	}, lb.TCP)
}
