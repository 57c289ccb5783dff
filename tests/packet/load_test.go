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
	"github.com/nearlb/nearlb/pkg/maps"
)

// byLoad is a Service whose new connections go to the less loaded one of two backends.
func byLoad(d lb.Decision) lb.Decision { d.Balancing = lb.BalanceLeastConnections; return d }

// opened are the connections that count for each backend.
func (r *rig) opened() map[netip.AddrPort]int {
	r.Helper()
	all := map[netip.AddrPort]int{}
	for id := range r.objects.Backends.MaxEntries() {
		var b bpf.NearlbBackend
		if check(r, r.objects.Backends.Lookup(id, &b)); b.State == 0 {
			continue
		}
		var h bpf.NearlbBackendHealth
		if check(r, r.objects.BackendHealth.Lookup(id, &h)); h.Open != 0 {
			all[maps.AddrPortOf(b)] += int(h.Open)
		}
	}
	return all
}

// remembered are the first entries of web's connections in the flow table that which holds of, by backend.
func (r *rig) remembered(which func(*bpf.NearlbFlow) bool) map[netip.AddrPort]int {
	r.Helper()
	const apart = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS | bpf.NearlbFlowFlagsFLOW_DIRECT)
	all := map[netip.AddrPort]int{}
	for _, f := range r.liveFlows() {
		if f.Flags&apart == 0 && f.Backend != 0 && which(&f) {
			all[r.backend(f.Backend)]++
		}
	}
	return all
}

func counted(f *bpf.NearlbFlow) bool { return f.Seen&uint32(bpf.NearlbFlowLoadSEEN_COUNTED) != 0 }

// open is what the agent takes for an open connection.
func open(f *bpf.NearlbFlow) bool {
	const both = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN | bpf.NearlbFlowSeenSEEN_SERVER_FIN)
	old := int32(bpf.Jiffies()-f.Touched) > int32(timeout(*f)*bpf.JiffiesPerSecond())
	return !old && f.Seen&uint32(bpf.NearlbFlowSeenSEEN_RESET) == 0 && f.Seen&both != both
}

// recount has the agent compare twice: as much is corrected as two walks agree about.
func (r *rig) recount() {
	for range 2 {
		for r.tables.Recount() {
		}
	}
}

// agrees compares what is counted with the flow table.
func (r *rig) agrees(when string, which func(*bpf.NearlbFlow) bool) {
	r.Helper()
	if got, want := fmt.Sprint(r.opened()), fmt.Sprint(r.remembered(which)); got != want {
		r.Fatalf("%s: counted are %s, the table has %s", when, got, want)
	}
}

// ends has both sides close a connection, or the client reset it; a datagram's does not end so.
func (c talk) ends(r *rig, reset bool) {
	r.Helper()
	if reset {
		r.expect(fromPod, c.in.with("RA", ""), "translate_established")
		return
	}
	r.expect(fromPod, c.in.with("FA", ""), "translate_established")
	r.expect(toPod, c.out.reply("FA", ""), "translate_reply")
}

// opens opens so many connections, one after the other, and counts them by backend.
func (r *rig) opens(w world, from uint16, n int) (talks []talk, at map[netip.AddrPort]int) {
	r.Helper()
	at = map[netip.AddrPort]int{}
	for i := range n {
		c := r.open(w, from+uint16(i))
		talks = append(talks, c)
		at[c.out.dst]++
	}
	return talks, at
}

func near(got, want int) bool { return got >= want-1 && got <= want+1 }

// Each row begins with no connection, and with the backends pod 2 and pod 3 of web.
func TestTheLessLoadedOfTwoBackendsGetsANewConnection(t *testing.T) {
	rows := []struct {
		name     string
		datagram bool // holds of UDP as well
		play     func(*testing.T, *rig, world, netip.AddrPort, netip.AddrPort)
	}{
		{"as many to each", true, asManyToEach},
		{"closed ones count no more", false, closedOnesCountNoMore},
		{"expired ones count no more", true, expiredOnesCountNoMore},
		{"by weight", true, byWeight},
		{"one that answers slowly gets half", false, slowOnesGetHalf},
		{"one that is left out gets none", false, leftOutGetsNone},
		{"affinity comes first", true, affinityComesFirst},
		{"a SYN that comes again counts where it goes", false, retriedOnesCountWhereTheyGo},
		{"a lost one is found where its hash leads", false, lostOnesAreFound},
		{"those that were there count", true, earlierOnesCount},
		{"what other nodes have counts, for a while", true, othersCount},
		{"and by weight", true, othersCountByWeight},
		{"but not of one backend alone", true, othersOfOneAloneDoNotCount},
		{"nor less than may have changed since", true, lessThanMayHaveChangedDoesNotCount},
	}
	forEachDoor(t, withSets(256), func(t *testing.T, r *rig, w world) {
		for _, row := range rows {
			if w.protocol == lb.UDP && !row.datagram {
				continue
			}
			t.Run(row.name, func(t *testing.T) {
				r := r.in(t)
				r.forget()
				r.publish(byLoad(webTiers(w, w.tier(8080, 2, 3))))
				r.recount()
				r.agrees("at the beginning", counted)
				row.play(t, r, w, at(w.pod(2), 8080), at(w.pod(3), 8080))
			})
		}
	}, lb.TCP, lb.UDP)
}

func asManyToEach(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	talks, got := r.opens(w, 41000, 40)
	if !near(got[a], 20) {
		t.Errorf("%d of 40 connections to one of two", got[a])
	}
	for _, c := range talks { // copies count once
		c.sends(r, "translate_established")
	}
	r.agrees("after 40 connections", open)
}

func closedOnesCountNoMore(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	talks, _ := r.opens(w, 41000, 40)
	for i, c := range talks {
		if c.connects(r); c.out.dst == a {
			c.ends(r, i%2 == 0)
		}
	}
	r.agrees("after those of one backend have ended", open)
	if got := r.opened()[a]; got != 0 {
		t.Errorf("%d connections count for a backend that has none", got)
	}
	r.answerAlike()
	if _, got := r.opens(w, 42000, 10); got[b] > 1 {
		t.Errorf("%d of 10 new connections to the one that has others", got[b])
	}
}

func expiredOnesCountNoMore(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.opens(w, 41000, 20)
	r.waited(48 * time.Hour)
	r.recount()
	if got := r.opened(); len(got) != 0 {
		t.Errorf("counted are %v", got)
	}
	r.opens(w, 42000, 20)
	r.agrees("after new ones", open)
}

func byWeight(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	d := byLoad(webTiers(w, w.tier(8080, 2, 3)))
	for i := range d.Backends {
		d.Backends[i].Weight = map[netip.AddrPort]uint32{a: 100, b: 300}[d.Backends[i].Key.Address]
	}
	r.publish(d)
	if _, got := r.opens(w, 41000, 40); got[a] < 8 || got[a] > 12 {
		t.Errorf("%d of 40 connections to the one of a quarter of the weight", got[a])
	}
}

// answersIn says how long a backend takes to answer a SYN.
func (r *rig) answersIn(backend netip.AddrPort, took time.Duration) {
	s := r.suspect(backend)
	r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
		if id == s.ID {
			h.SynTime, h.SynTimed = uint32(took.Microseconds()), bpf.Jiffies()
		}
	})
}

// answerAlike forgets how long backends took, as a busy machine takes its time in between.
func (r *rig) answerAlike() {
	r.editHealth(func(_ uint32, h *bpf.NearlbBackendHealth) { h.SynTime = 0 })
}

func slowOnesGetHalf(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.answersIn(a, 40*time.Millisecond)
	r.answersIn(b, 300*time.Microsecond)
	if _, got := r.opens(w, 41000, 30); got[a] < 8 || got[a] > 12 {
		t.Errorf("%d of 30 connections to the slow one, want a third", got[a])
	}
	r.forget()
	r.recount()
	r.answersIn(a, 3*time.Millisecond) // not far slower: of none and none it gets none
	r.answersIn(b, time.Millisecond)
	for port := range uint16(10) {
		c := r.open(w, 43000+port)
		if c.out.dst == a {
			t.Errorf("the slower one gets a connection, and none is open")
		}
		c.connects(r)
		c.ends(r, true)
		r.answersIn(a, 3*time.Millisecond)
		r.answersIn(b, time.Millisecond)
	}
	c := r.open(w, 44000)
	r.sentBefore(100 * time.Millisecond)
	c.connects(r)
	s := r.suspect(c.out.dst)
	r.editHealth(func(id uint32, h *bpf.NearlbBackendHealth) {
		if id == s.ID && h.SynTime < 8000 {
			t.Errorf("%d microseconds, after an answer in 100 ms", h.SynTime)
		}
	})
	r.forgetHealth()
	r.recount()
}

// trialTime is how long after one connection the next one may try a backend whose time is over (HEALTH_TRIAL of bpf/lib/health.h).
const trialTime = 2 * time.Second

func leftOutGetsNone(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.forgetHealth()
	r.eject(a)
	if _, got := r.opens(w, 41000, 20); got[a] != 0 {
		t.Errorf("%d of 20 connections to the one that is left out", got[a])
	}
	r.later(2 * leftOut)
	began := time.Now()
	if _, got := r.opens(w, 42000, 20); got[a] == 0 || got[a] > 1 && time.Since(began) < trialTime {
		t.Errorf("%d of 20 connections try the one whose time is over, want one", got[a])
	}
	r.forgetHealth()
	r.recount()
	r.agrees("after its time", counted)
}

func affinityComesFirst(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.publish(byLoad(w.decide(service{name: "web", address: at(w.vip(10), 80), affinity: time.Hour, tiers: tiersOf(w.tier(8080, 2, 3))})))
	talks, got := r.opens(w, 41000, 10)
	if got[talks[0].out.dst] != 10 {
		t.Errorf("one client's connections are at %v", got)
	}
	other := r.start(w.packet(at(w.pod(4), 41000), at(w.vip(10), 80)))
	if other.out.dst == talks[0].out.dst {
		t.Error("another client comes to the loaded one")
	}
	r.agrees("with affinity", open)
}

func retriedOnesCountWhereTheyGo(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.publish(byLoad(webTiers(w, w.tier(8080, 2, 3, 4, 5))))
	tried := map[netip.AddrPort]bool{}
	c := r.open(w, 41000)
	for tried[c.out.dst] = true; len(tried) < 4; tried[c.out.dst] = true {
		if c = c.again(r, retryAfter, "translate_retry"); tried[c.out.dst] {
			t.Fatalf("%s gets the SYN twice", c.out.dst)
		}
		r.agrees("after a SYN that came again", open)
	}
	if got := r.opened(); len(got) != 1 || got[c.out.dst] != 1 {
		t.Errorf("counted are %v, the connection is at %s", got, c.out.dst)
	}
	r.forgetHealth()
}

func lostOnesAreFound(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	for port := range uint16(10) { // of equal load
		r.answerAlike()
		c := r.open(w, 41000+port)
		c.connects(r)
		r.evict()
		r.recount()
		c.goOn(r, "translate_recover", "translate_reply")
		r.agrees("after a lost one was found", open)
		c.ends(r, true)
	}
}

func earlierOnesCount(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.publish(webTiers(w, w.tier(8080, 2, 3)))
	r.opens(w, 41000, 20)
	if got := r.opened(); len(got) != 0 {
		t.Errorf("counted are %v, and nobody asks", got)
	}
	r.publish(byLoad(webTiers(w, w.tier(8080, 2, 3))))
	r.recount()
	r.agrees("after the Service asks for it", open)
	for port := range uint16(20) {
		if w.protocol == lb.TCP {
			c := talk{in: w.packet(at(w.pod(1), 41000+port), at(w.vip(10), 80))}
			c.ends(r, true)
		}
	}
	r.agrees("after they have ended", counted)
}

// othersHave has other nodes' agents tell that they have so many connections to backends, and may have opened so many since.
func (r *rig) othersHave(unsure uint32, has map[netip.AddrPort]uint32) {
	r.Helper()
	var all []maps.Others
	for backend, open := range has {
		s := r.suspect(backend)
		all = append(all, maps.Others{ID: s.ID, Generation: s.Generation, Open: open, Unsure: unsure})
	}
	r.tables.TellOthers(all)
}

// ownAlone is more than chance gives of 40 connections to those that go by this node's connections alone, which are an eighth.
const ownAlone = 14

func othersCount(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.othersHave(0, map[netip.AddrPort]uint32{a: 1000, b: 0})
	_, got := r.opens(w, 41000, 40)
	if got[a] == 0 || got[a] > ownAlone {
		t.Errorf("%d of 40 connections to the one to which other nodes have many, want some 5", got[a])
	}
	r.othersHave(0, map[netip.AddrPort]uint32{a: 0, b: 1000})
	if _, after := r.opens(w, 42000, 40); after[a] < 40-ownAlone {
		t.Errorf("%d of 40 connections to the one to which other nodes have none", after[a])
	}
	r.later(othersFor + time.Second)
	if before, now := r.opened(), r.lessOf(w, 43000, a, b, 10); now != 10 {
		t.Errorf("%d of 10 connections to the one with fewer, of %v, after what was told is over", now, before)
	}
	r.forgetHealth()
	r.recount()
}

// othersFor is how long what was told counts: OTHERS_SECONDS of bpf/lib/types.h.
const othersFor = time.Duration(bpf.NearlbOthersOTHERS_SECONDS) * time.Second

// lessOf opens so many connections, and counts those that go to the one of two backends to which this node has fewer.
func (r *rig) lessOf(w world, from uint16, a, b netip.AddrPort, n int) (less int) {
	r.Helper()
	for i := range n {
		before := r.opened()
		c := r.open(w, from+uint16(i))
		if other := map[netip.AddrPort]netip.AddrPort{a: b, b: a}[c.out.dst]; before[c.out.dst] <= before[other] {
			less++
		}
	}
	return less
}

func othersCountByWeight(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	d := byLoad(webTiers(w, w.tier(8080, 2, 3)))
	for i := range d.Backends {
		d.Backends[i].Weight = map[netip.AddrPort]uint32{a: 100, b: 300}[d.Backends[i].Key.Address]
	}
	r.publish(d)
	r.othersHave(0, map[netip.AddrPort]uint32{a: 1000, b: 3000})
	if _, got := r.opens(w, 41000, 40); got[a] < 8 || got[a] > 12 {
		t.Errorf("%d of 40 connections to the one of a quarter of the weight", got[a])
	}
	r.othersHave(0, map[netip.AddrPort]uint32{a: 1000, b: 2000})
	if _, got := r.opens(w, 42000, 40); got[a] > ownAlone {
		t.Errorf("%d of 40 connections to the one of a quarter of the weight with a third of the connections", got[a])
	}
	r.forgetHealth()
	r.recount()
}

func othersOfOneAloneDoNotCount(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	for i, told := range []netip.AddrPort{a, b} {
		r.othersHave(0, map[netip.AddrPort]uint32{told: 1000})
		if less := r.lessOf(w, 41000+uint16(100*i), a, b, 20); less != 20 {
			t.Errorf("%d of 20 connections to the one with fewer, while what others have to %s alone is known", less, told)
		}
		r.forgetHealth()
		r.recount()
	}
}

func lessThanMayHaveChangedDoesNotCount(t *testing.T, r *rig, w world, a, b netip.AddrPort) {
	r.othersHave(60, map[netip.AddrPort]uint32{a: 100, b: 0})
	if less := r.lessOf(w, 41000, a, b, 20); less != 20 {
		t.Errorf("%d of 20 connections to the one with fewer here", less)
	}
	r.othersHave(60, map[netip.AddrPort]uint32{a: 200, b: 0})
	if _, got := r.opens(w, 42000, 40); got[a] > ownAlone {
		t.Errorf("%d of 40 connections to the one to which others have clearly more", got[a])
	}
	r.forgetHealth()
	r.recount()
}

// F6: random histories of connections in a small table, which evicts some of them: what is counted is always what entries say that they count,
// and after a recount that is the open ones.
func TestRandomHistoriesCountConnectionsAsTheFlowTableHasThem(t *testing.T) {
	forEachDoor(t, withSets(8), func(t *testing.T, r *rig, w world) {
		r.publish(byLoad(webTiers(w, w.tier(8080, 2, 3, 4))))
		draw := rand.New(rand.NewPCG(1, uint64(len(t.Name()))))
		talks := map[uint16]talk{}
		run := func(hook string, p packet) { r.try(hook, p.bytes()) }
		for n := range 160 {
			port := 41000 + uint16(draw.IntN(90))
			c, known := talks[port]
			switch act := draw.IntN(12); {
			case !known || act < 4:
				talks[port] = r.open(w, port)
			case act == 4:
				run(toPod, c.out.reply("SA", ""))
				run(fromPod, c.in.with("A", "go"))
			case act == 5:
				run(fromPod, c.in.with("FA", ""))
			case act == 6:
				run(toPod, c.out.reply("FA", ""))
			case act == 7:
				run(fromPod, c.in.with("RA", ""))
			case act == 8:
				run(toPod, c.out.reply("RA", ""))
			case act == 9: // a reset that ended nothing, or datagrams
				run(fromPod, c.in.with("A", "x"))
				run(toPod, c.out.reply("A", "x"))
			case act == 10:
				r.waited(time.Second)
				talks[port] = r.start(c.in)
			default:
				r.age(map[uint16]time.Duration{port: 48 * time.Hour})
			}
			r.agrees(fmt.Sprintf("step %d", n), counted)
			if n%40 == 39 {
				r.recount()
				r.agrees("after a recount", open)
				r.agrees("after a recount", counted)
			}
		}
		r.forgetHealth()
		r.evict()
	}, lb.TCP, lb.UDP)
}
