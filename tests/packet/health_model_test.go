// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// judged is what is to be known of a backend, by the rules that ARCHITECTURE.md says in words. Times are those of the history.
type judged struct {
	unanswered int
	first      int // client
	several    bool
	began      time.Duration // the SYN of the first of them
	answered   time.Duration // last; below 0: never
	out        bool
}

// unansweredSYN counts a SYN that nobody answered. True: the agent is to be told.
func (j *judged) unansweredSYN(client int, sent, now time.Duration) (tells bool) {
	if j.answered >= sent {
		return false // it lives: the SYN was lost
	}
	if now-j.began > time.Minute || j.answered >= j.began {
		j.unanswered = 0
	}
	if j.unanswered == 0 {
		j.began, j.first, j.several = sent, client, false
	}
	j.several = j.several || client != j.first
	j.unanswered++
	return !j.out && (j.several && j.unanswered >= 3 || j.unanswered >= 5)
}

// history is what happens to four backends, in the programs and beside them.
type history struct {
	*rig
	world
	random  *rand.Rand
	now     time.Duration
	port    uint16
	judged  map[netip.AddrPort]*judged
	said    []string
	clients []int
	began   time.Time
}

// slowHistory is longer than any history takes but on a machine that has much else to do: then time passes that the model knows nothing of.
const slowHistory = 3 * time.Second

// slow says that the programs and the model may be of two minds about what is a minute ago.
func (h *history) slow() bool { return time.Since(h.began) > slowHistory }

// wait lets time pass, here and there.
func (h *history) wait(d time.Duration) {
	h.Helper()
	h.later(d)
	h.now += d
}

// open begins connections until one comes to the backend. None comes to one that is left out.
func (h *history) open(client int, backend netip.AddrPort) talk {
	h.Helper()
	for range 1000 {
		h.port++
		c := h.start(h.packet(at(h.pod(client), h.port), at(h.vip(10), 80)))
		if h.judged[c.out.dst].out {
			h.Fatalf("%v: a connection comes to %s, which is left out", h.said, c.out.dst)
		}
		if c.out.dst == backend {
			return c
		}
	}
	h.Fatalf("%v: no connection comes to %s", h.said, backend)
	return talk{}
}

// answers has somebody's SYN answered. A SYN that comes within an eighth of a second is taken for an earlier one: none does.
func (h *history) answers(backend netip.AddrPort, c talk) {
	h.Helper()
	h.expect(toPod, c.out.reply("SA", ""), "translate_reply")
	h.judged[backend].answered, h.judged[backend].out = h.now, false
}

// silence has several clients' SYNs come again; alive: the backend answers another one meanwhile.
func (h *history) silence(backend netip.AddrPort, alive bool) {
	h.Helper()
	j, sent := h.judged[backend], h.now
	var waiting []talk
	var of []int
	for range 1 + h.random.IntN(5) {
		client := h.clients[h.random.IntN(len(h.clients))]
		waiting, of = append(waiting, h.open(client, backend)), append(of, client)
	}
	other := h.open(h.clients[0], backend)
	h.wait(25 * time.Second)
	if alive {
		h.answers(backend, other)
	}
	tells := false
	for i, c := range waiting {
		if next := c.again(h.rig, 0, "translate_retry"); h.judged[next.out.dst].out {
			h.Errorf("%v: a SYN that comes again goes to %s, which is left out", h.said, next.out.dst)
		}
		tells = j.unansweredSYN(of[i], sent, h.now) || tells
	}
	if told := h.told(); len(told) > 0 != tells && !h.slow() {
		h.Errorf("%v: told of %v, want %v", h.said, told, tells)
	}
}

// leaveOut has the agent leave a backend out, which half of the others have to allow; a connection of before may be answered yet.
func (h *history) leaveOut(backend netip.AddrPort, late bool) {
	h.Helper()
	outs := 0
	for _, j := range h.judged {
		if j.out {
			outs++
		}
	}
	before := h.open(h.clients[0], backend)
	refused, err := h.tables.Eject(h.suspect(backend), bpf.BootNanoseconds()+uint64(leftOut), 1)
	check(h, err)
	if want := 2*(outs+1) > len(h.judged); (refused != "") != want {
		h.Errorf("%v: refused is %q with %d left out", h.said, refused, outs)
	}
	if h.judged[backend].out = refused == ""; late {
		h.answers(backend, before)
		h.wait(time.Second)
	}
}

// step is one event, and what follows from it.
func (h *history) step(backend netip.AddrPort) {
	h.Helper()
	j, what := h.judged[backend], h.random.IntN(8)
	h.said = append(h.said, fmt.Sprint(what, " at ", backend))
	switch {
	case what == 0:
		h.wait(100 * time.Second)
	case j.out:
		h.tables.Readmit(h.suspect(backend))
		j.out, j.unanswered = false, 0
	case what < 3:
		h.answers(backend, h.open(h.clients[0], backend))
		h.wait(time.Second)
	case what == 3:
		h.leaveOut(backend, h.random.IntN(2) == 0)
	default:
		h.silence(backend, what == 4)
	}
	h.evict()
}

// check compares what the programs know with the model.
func (h *history) check() {
	h.Helper()
	for backend, j := range h.judged {
		e := h.health(backend)
		clients := min(j.unanswered, 1)
		if j.several && j.unanswered > 0 {
			clients = 2
		}
		if e.Unanswered != j.unanswered || j.unanswered > 0 && e.Clients != clients || (e.Until != 0) != j.out {
			h.Fatalf("%v: of %s is known %+v, want %+v", h.said, backend, e, *j)
		}
	}
}

// Histories of answers, silence and of being left out, drawn at random, are judged by the programs as by a model that has no hash, no clock and
// no processors.
func TestRandomHistoriesOfBackendsAreJudgedByTheRules(t *testing.T) {
	forEachOf(t, bpf.Options{}, worlds(lb.TCP), func(t *testing.T, r *rig, w world) {
		for seed := range uint64(16) {
			h := r.newHistory(w, seed)
			for range 8 {
				if h.step(at(w.pod(2+h.random.IntN(2)), 8080)); h.slow() {
					t.Logf("%v: the machine is too slow for the rest", h.said)
					break
				}
				h.check()
			}
		}
	})
}

func (r *rig) newHistory(w world, seed uint64) *history {
	r.Helper()
	backends := w.tier(8080, 2, 3, 4, 5)
	r.publish(webTiers(w, backends))
	r.forgetHealth()
	r.evict()
	h := &history{rig: r, world: w, random: rand.New(rand.NewPCG(seed, 1)), port: 20000, judged: map[netip.AddrPort]*judged{}, clients: []int{1, 9}, began: time.Now()}
	for _, b := range backends {
		h.judged[b] = &judged{answered: -1}
		h.begins(b)
	}
	return h
}
