// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// awaitedFor has backends been awaited for so much longer.
func (r *rig) awaitedFor(d time.Duration) {
	r.Helper()
	for i := range r.objects.AwaitedBackends.MaxEntries() {
		var a bpf.NearlbAwaitedBackend
		check(r, r.objects.AwaitedBackends.Lookup(i, &a))
		if a.Backend == 0 {
			continue
		}
		a.Began -= uint32(d/time.Second) * bpf.JiffiesPerSecond()
		check(r, r.objects.AwaitedBackends.Put(i, &a))
	}
}

// awaited is what is known of connections that wait for a backend.
func (r *rig) awaited(backend netip.AddrPort) (a bpf.NearlbAwaitedBackend) {
	r.Helper()
	check(r, r.objects.AwaitedBackends.Lookup(r.suspect(backend).ID%r.objects.AwaitedBackends.MaxEntries(), &a))
	return a
}

// waits opens a connection of a client that backend gets, and that is not answered. It goes on from the last port.
func (r *rig) waits(w world, client int, port *uint16, backend netip.AddrPort) talk {
	r.Helper()
	for range 1000 {
		*port++
		if c := r.start(w.packet(at(w.pod(client), *port), at(w.vip(10), 80))); c.out.dst == backend {
			return c
		}
	}
	r.Fatalf("no connection goes to %s", backend)
	return talk{}
}

// The agent is told of a backend that answers none of several connections, before any of their SYNs comes again.
func TestTheAgentIsToldOfABackendBeforeASYNComesAgain(t *testing.T) {
	for _, row := range []struct {
		name    string
		clients []int // of which the last one begins when the others have waited
		waited  time.Duration
		tells   bool
	}{
		{"two connections of two clients", []int{1, 9}, retryAfter, false},
		{"three connections of two clients", []int{1, 9, 9}, retryAfter, true},
		{"three connections of two clients that have just begun", []int{1, 9, 9}, retryAfter - 5*time.Second, false},
		{"four connections of one client", []int{1, 1, 1, 1}, retryAfter, false},
		{"five connections of one client", []int{1, 1, 1, 1, 1}, retryAfter, true},
		{"three connections, the first of which is long ago", []int{1, 9, 9}, 62 * time.Second, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
				r.publish(webTiers(w, w.tier(8080, 2, 3, 4)))
				r.forgetHealth()
				port, dead := uint16(41000), at(w.pod(2), 8080)
				var waiting []talk
				for i, client := range row.clients {
					if i == len(row.clients)-1 {
						r.awaitedFor(row.waited)
					}
					if told := r.told(); len(told) > 0 {
						t.Errorf("told of %v after %d connections", told, i)
					}
					waiting = append(waiting, r.waits(w, client, &port, dead))
				}
				told := slices.DeleteFunc(r.told(), func(s maps.Suspect) bool { return s != r.suspect(dead) }) // the others are silent, too
				if tells := len(told) == 1; tells != row.tells || len(told) > 1 {
					t.Errorf("told %d times", len(told))
				}
				if !row.tells {
					if e := r.health(dead); e.Unanswered != 0 {
						t.Errorf("evidence %+v", e)
					}
					return
				}
				if e := r.health(dead); e.Unanswered != len(row.clients) || e.Clients != min(2, len(slices.Compact(slices.Clone(row.clients)))) || e.Until != 0 {
					t.Errorf("evidence %+v", e)
				}
				r.later(retryAfter)
				for _, c := range waiting { // each is one connection yet
					c.sends(r, "translate_retry")
				}
				if e := r.health(dead); e.Unanswered != len(row.clients) {
					t.Errorf("evidence %+v once SYNs came again", e)
				}
				r.evict()
				if r.silent(w, 1, &port, dead); r.health(dead).Unanswered != len(row.clients)+1 {
					t.Errorf("evidence %+v after one more", r.health(dead))
				}
			}, lb.TCP)
		})
	}
}

// An answer to anybody says that the server lives, though it may be slow; where it has just answered, nothing is counted, nor written.
func TestAnAnswerToAnybodyEndsTheWait(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2)))
		r.forgetHealth()
		port, server := uint16(41000), at(w.pod(2), 8080)
		first := r.waits(w, 1, &port, server)
		for range 8 {
			r.waits(w, 9, &port, server)
		}
		if a := r.awaited(server); a.Connections != 9 || a.Clients != 2 {
			t.Errorf("%+v after nine connections", a)
		}
		r.expect(toPod, first.out.reply("SA", ""), "translate_reply")
		r.awaitedFor(retryAfter)
		before := r.awaited(server)
		r.waits(w, 9, &port, server)
		if told, a := r.told(), r.awaited(server); len(told) != 0 || a != before && a.Connections != 1 { // it took longer than an eighth of a second
			t.Errorf("told of %v, %+v after an answer", told, a)
		}
	}, lb.TCP)
}

// Two backends may have one slot: neither is told of then, and SYNs that come again are evidence as ever.
func TestOneBackendIsAwaitedInASlot(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(webTiers(w, w.tier(8080, 2)))
		r.forgetHealth()
		port, dead := uint16(41000), at(w.pod(2), 8080)
		for range 20 {
			r.waits(w, 1, &port, dead)
			r.awaitedFor(retryAfter)
			a, index := r.awaited(dead), r.suspect(dead).ID%r.objects.AwaitedBackends.MaxEntries()
			if a.Backend != r.suspect(dead).ID || a.Connections != 1 {
				t.Fatalf("%+v after a connection", a)
			}
			a.Backend += r.objects.AwaitedBackends.MaxEntries()
			check(t, r.objects.AwaitedBackends.Put(index, &a))
		}
		if told := r.told(); len(told) != 0 {
			t.Errorf("told of %v", told)
		}
	}, lb.TCP)
}

// A SYN with FIN or RST gets no answer of a server that lives: nobody waits for one.
func TestASYNWithOtherFlagsIsNotAwaited(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		for _, flags := range []string{"SF", "SR"} {
			r.publish(webTiers(w, w.tier(8080, 2)))
			r.forgetHealth()
			for port := range uint16(10) {
				if port == 9 {
					r.awaitedFor(retryAfter)
				}
				r.expect(fromPod, w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80)).with(flags, ""), "translate_balance")
			}
			if told := r.told(); len(told) != 0 {
				t.Errorf("%s: told of %v", flags, told)
			}
			r.evict()
		}
	}, lb.TCP)
}
