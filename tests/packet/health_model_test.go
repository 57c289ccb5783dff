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
	ahead      int // of these, counted before their SYNs come again
	first      int // client
	several    bool
	began      time.Duration // the SYN of the first of them
	answered   time.Duration // last; below 0: never
	out        bool
	waits      awaited
}

// awaited are connections that have begun since a backend's last answer.
type awaited struct {
	connections int
	first       int // client
	several     bool
	began       time.Duration // the first of them
}

// awaitedFor is how long a backend answers nobody before the agent is told: longer than any step takes, so that only histories' own time counts.
const awaitedFor = 10 * time.Second

func enough(connections int, several bool) bool {
	return several && connections >= 3 || connections >= 5
}

// begin forgets evidence that is old, or from before an answer.
func (j *judged) begin(now time.Duration) {
	if now-j.began > time.Minute || j.answered >= j.began {
		j.unanswered, j.ahead = 0, 0
	}
}

// unansweredSYN counts a SYN that nobody answered. True: the agent is to be told.
func (j *judged) unansweredSYN(client int, sent, now time.Duration) (tells bool) {
	if j.answered >= sent {
		return false // it lives: the SYN was lost
	}
	if j.begin(now); j.unanswered == 0 {
		j.began, j.first, j.several, j.ahead = sent, client, false, 0
	}
	j.several = j.several || client != j.first
	if j.ahead > 0 {
		j.ahead--
	} else {
		j.unanswered++
	}
	return !j.out && enough(j.unanswered, j.several)
}

// awaits counts a connection that begins. True: the agent is to be told, before any SYN comes again.
func (j *judged) awaits(client int, now time.Duration) (tells bool) {
	w := &j.waits
	if j.answered >= 0 && now-j.answered < time.Second/8 {
		return false
	}
	if w.connections == 0 || now-w.began > time.Minute || j.answered >= w.began {
		*w = awaited{1, client, false, now}
		return false
	}
	w.connections++
	w.several = w.several || client != w.first
	if now-w.began < awaitedFor || !enough(w.connections, w.several) {
		return false
	}
	if j.begin(now); j.out {
		return false
	}
	if j.unanswered < w.connections {
		j.unanswered, j.ahead, j.began, j.first, j.several = w.connections, w.connections, w.began, w.first, w.several
	}
	return true
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
	tells   bool // the agent is to be told in this step
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
	h.awaitedFor(d)
	h.now += d
}

// comes has a connection of a client begin at a backend.
func (h *history) comes(client int, backend netip.AddrPort) {
	h.Helper()
	if h.judged[backend].out {
		h.Fatalf("%v: a connection comes to %s, which is left out", h.said, backend)
	}
	h.tells = h.judged[backend].awaits(client, h.now) || h.tells
}

// open begins connections until one comes to the backend. None comes to one that is left out.
func (h *history) open(client int, backend netip.AddrPort) talk {
	h.Helper()
	for range 1000 {
		h.port++
		c := h.start(h.packet(at(h.pod(client), h.port), at(h.vip(10), 80)))
		if h.comes(client, c.out.dst); c.out.dst == backend {
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
		h.wait(time.Second)
	}
	for i, c := range waiting {
		next := c.again(h.rig, 0, "translate_retry")
		h.tells = j.unansweredSYN(of[i], sent, h.now) || h.tells
		h.comes(of[i], next.out.dst)
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
	h.tells = false
	h.editHealth(func(_ uint32, b *bpf.NearlbBackendHealth) { b.Told = 0 }) // what a second keeps back is told in each step
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

// check compares what the programs know, and told, with the model.
func (h *history) check() {
	h.Helper()
	if told := h.told(); len(told) > 0 != h.tells {
		h.Fatalf("%v: told of %v, want %v", h.said, told, h.tells)
	}
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
	knobs := map[string]any{"awaited_milliseconds": uint32(awaitedFor / time.Millisecond)}
	forEachOf(t, bpf.Options{Knobs: knobs}, worlds(lb.TCP), func(t *testing.T, r *rig, w world) {
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
		s := h.begins(b)
		check(r, r.objects.AwaitedBackends.Put(s.ID%r.objects.AwaitedBackends.MaxEntries(), &bpf.NearlbAwaitedBackend{}))
	}
	h.told() // of histories before
	return h
}
