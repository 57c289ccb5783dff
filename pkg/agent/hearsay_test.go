// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

var (
	oneHearsayKey     = hearsayKeys([]string{oneKey})[0]
	anotherHearsayKey = hearsayKeys([]string{anotherKey})[0]
)

// ways are of both families: from, to, and a third one.
var ways = [][3]netip.Addr{
	{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")},
	{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::3")},
}

// What another node says counts as it was said, from whom, and to whom, with a key that both have.
func TestHearsayThatWasForgedCutOrSentElsewhereIsNone(t *testing.T) {
	for _, way := range ways {
		from, to, third := way[0], way[1], way[2]
		want := said{at: 7, nodes: []uint64{1, 2, 3}}
		in := want.encode(oneHearsayKey, from, to)
		for _, keys := range [][]hearsayKey{{oneHearsayKey}, {anotherHearsayKey, oneHearsayKey}} {
			if got, ok := decodeSaid(in, keys, from, to); !ok || got.at != want.at || !slices.Equal(got.nodes, want.nodes) {
				t.Errorf("%s: got %+v, %v", from, got, ok)
			}
		}
		takes := func(in []byte, from, to netip.Addr, keys ...hearsayKey) bool {
			_, ok := decodeSaid(in, keys, from, to)
			return ok
		}
		for what, taken := range map[string]bool{
			"with another key":   takes(in, from, to, anotherHearsayKey),
			"without a key":      takes(in, from, to),
			"from another node":  takes(in, third, to, oneHearsayKey),
			"for another node":   takes(in, from, third, oneHearsayKey),
			"sent back":          takes(in, to, from, oneHearsayKey),
			"nothing":            takes(nil, from, to, oneHearsayKey),
			"of no node":         takes(said{at: 7}.encode(oneHearsayKey, from, to), from, to, oneHearsayKey),
			"of very many nodes": takes(said{at: 7, nodes: make([]uint64, hearsayMost+1)}.encode(oneHearsayKey, from, to), from, to, oneHearsayKey),
			"a question":         takes(helloOf(tunnelCookies([]string{oneKey}), 9), from, to, oneHearsayKey),
		} {
			if taken {
				t.Errorf("%s: what was said %s is taken", from, what)
			}
		}
		for at := range in {
			wrong := slices.Clone(in)
			wrong[at] ^= 1
			if takes(wrong, from, to, oneHearsayKey) || takes(in[:at], from, to, oneHearsayKey) {
				t.Errorf("%s: byte %d is another, or the last, and it is taken", from, at)
			}
		}
	}
}

func TestNoKeyIsMadeOfNone(t *testing.T) {
	if keys := hearsayKeys([]string{noTunnelKey, oneKey}); len(keys) != 1 || keys[0] != oneHearsayKey {
		t.Errorf("%d keys", len(keys))
	}
}

// What was said before is not heard again, nor what comes from no node; of nodes that are not known nothing is told.
func TestHearsayIsHeardOnceAndFromNodesAlone(t *testing.T) {
	nodes, _ := nodesOf(4)
	h := newHearsay("n0", nil)
	h.follow(nodes)
	from, now := nodes["n1"][0], time.Now()
	s := said{at: 5, nodes: []uint64{nodeHash("n2"), nodeHash("other"), nodeHash("n0"), nodeHash("n3")}}
	if got := h.heard(netip.MustParseAddr("192.0.2.1"), s, now); got != nil {
		t.Errorf("from no node: %q", got)
	}
	if got := h.heard(from, s, now); !slices.Equal(got, []string{"n2", "n3"}) {
		t.Errorf("heard of %q", got)
	}
	h.follow(nodes)
	if got := h.heard(from, s, now); got != nil {
		t.Errorf("replayed: %q", got)
	}
	if s.at++; h.heard(from, s, now) == nil {
		t.Error("the next one is not heard")
	}
	s.at = 1 // its clock was set back
	if now = now.Add(hearsayForgets - time.Second); h.heard(from, s, now) != nil {
		t.Error("an earlier one is heard")
	}
	if now = now.Add(time.Second); h.heard(from, s, now) == nil {
		t.Error("a node whose clock was set back is never heard again")
	}
}

// What comes from no node, or was taken before, costs no MAC; what is not signed changes nothing of what is taken.
func TestNoMACIsMadeForWhatIsNotTakenAnyway(t *testing.T) {
	nodes, names := nodesOf(4)
	macs := 0
	h := newHeartbeats(Options{NodeName: "n0", TunnelKeyFile: "key"}, nil, func() []hearsayKey { macs++; return []hearsayKey{oneHearsayKey} })
	h.follow(nodes, names)
	h.hearsay.follow(nodes)
	from, own := nodes["n1"][0], nodes["n0"][0]
	said := func(at uint64, key hearsayKey) []byte {
		return said{at: at, nodes: []uint64{nodeHash("n2")}}.encode(key, from, own)
	}
	for _, row := range []struct {
		in   []byte
		by   netip.Addr
		macs int
	}{
		{said(5, oneHearsayKey), netip.MustParseAddr("192.0.2.1"), 0},
		{said(5, oneHearsayKey)[:hearsayHead-1], from, 0},
		{said(9, anotherHearsayKey), from, 1},
		{said(5, oneHearsayKey), from, 2},
		{said(5, oneHearsayKey), from, 2},
	} {
		if h.take(row.in, row.by, own, time.Now()); macs != row.macs {
			t.Errorf("%d MACs after %x from %s, want %d", macs, row.in, row.by, row.macs)
		}
	}
	if h.hearsay.taken[from].sent != 5 {
		t.Errorf("what was taken last was sent at %d", h.hearsay.taken[from].sent)
	}
}

// A port that somebody else has is told of: nodes hear of silent ones late then.
func TestAPortOfHearsayThatIsTakenIsTroubleUntilItIsFree(t *testing.T) {
	taken, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 9, 9)})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(taken.LocalAddr().(*net.UDPAddr).Port)
	b := newBench(t, newScripted(), newWitnessed())
	defer b.stop()
	b.source.node.Addresses = []netip.Addr{netip.MustParseAddr("127.0.9.9")}
	h := newHeartbeats(Options{NodeName: "n1", TunnelKeyFile: "key", CarryPort: port - 1}, nil, func() []hearsayKey { return nil })
	defer h.sockets.close()
	defer h.tellers.close()
	r := &running{loop: b.loop, tables: b.tables.Tables, daemon: &daemon{source: b.source, log: b.log, diary: b.diary}}
	h.loads.begin(r.tables)
	for _, want := range []int{1, 0} {
		r.followNodes(h)
		if s := b.status(); len(s.Trouble) != want {
			t.Errorf("trouble: %q, want %d", s.Trouble, want)
		}
		_ = taken.Close()
	}
}

// A node is told of some times, to nodes that are not told of, the latest first where many are silent at once; and no more once it is heard.
func TestANodeThatIsSilentIsToldOfForAWhile(t *testing.T) {
	nodes, names := nodesOf(100)
	h := newHearsay("n0", rand.New(rand.NewPCG(1, 2)))
	h.follow(nodes)
	if _, to := h.next(1); to != nil {
		t.Errorf("%v are told of nothing", to)
	}
	for _, name := range names[1 : hearsayMost+2] {
		h.tell(name)
	}
	h.tell("n99")
	h.tell("n98")
	h.forget("n98")
	last, times := uint64(0), map[uint64]int{}
	for {
		s, to := h.next(1)
		if s.nodes == nil {
			break
		}
		if s.at <= last || len(to) == 0 || len(to) > hearsayNodes || len(s.nodes) > hearsayMost || times[nodeHash("n99")] < hearsayTimes && s.nodes[0] != nodeHash("n99") {
			t.Fatalf("%d nodes are told of %d at %d, after %d", len(to), len(s.nodes), s.at, last)
		}
		last = s.at
		for _, node := range s.nodes {
			times[node]++
			if slices.Contains(to, h.where[h.named[node]]) || node == nodeHash("n98") {
				t.Fatalf("%s is told, or told of", h.named[node])
			}
		}
	}
	if len(times) != hearsayMost+2 {
		t.Errorf("%d are told of", len(times))
	}
	for node, n := range times {
		if n != hearsayTimes {
			t.Errorf("%s is told of %d times", h.named[node], n)
		}
	}
}

// Whoever is said to be silent is asked at once, several times, and is silent if it does not answer them. One that answers is not, whatever is said.
func TestANodeThatIsSaidToBeSilentIsAsked(t *testing.T) {
	const count = 600
	r := newRhythm(count)
	r.goes((count-1-pulsePeers)/pulseFurther + 1)
	far := r.order[len(r.order)-1]
	r.hint("no node")
	for range 10 {
		r.hint(far)
		if news := r.goes(1); news != nil {
			t.Fatalf("told %+v of a node that answers", news)
		}
	}
	r.dead = func(name string) bool { return name == far }
	r.goes(1)
	r.hint(far)
	if asked := r.again(); !slices.Equal(asked, r.peers[far].addresses) {
		t.Errorf("asked at once are %v", asked)
	}
	if news := r.goes(1); !slices.Equal(news, []pulseNews{{far, pulseSilent}}) {
		t.Errorf("told %+v", news)
	}
	r.hint(far)
	if news := r.goes(1); news != nil {
		t.Errorf("told %+v again", news)
	}
	silent := r.order[len(r.order)-2]
	r.alive(silent)
	r.dead = func(name string) bool { return name == silent || name == far }
	r.hint(silent)
	if news := r.goes(5); news != nil {
		t.Errorf("told %+v of a node that never answered", news)
	}
}

// Over sockets: what one node says another hears, and neither what a stranger says, nor what comes from another port. A node that does not listen, as
// an agent of before this, costs nothing.
func TestNodesTellEachOtherOverSockets(t *testing.T) {
	addresses := func(last byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 9, last})} }
	nodes := map[string][]netip.Addr{"n1": addresses(1), "n2": addresses(2), "n3": addresses(3), "n4": addresses(4)}
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 9, 1)})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(free.LocalAddr().(*net.UDPAddr).Port)
	_ = free.Close()
	node := func(name string, last byte, key string) *heartbeats {
		h := newHeartbeats(Options{NodeName: name, TunnelKeyFile: "key", CarryPort: port - 1}, nil, func() []hearsayKey { return hearsayKeys([]string{key}) })
		h.follow(nodes, []string{"n1", "n2", "n3", "n4"})
		h.hearsay.follow(nodes)
		for _, q := range h.peers {
			q.answered = true
		}
		if err := h.tellers.open(addresses(last), hearsayPort(h.port), func(s *net.UDPConn) { go h.listen(s) }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.tellers.close)
		return h
	}
	one, two, stranger := node("n1", 1, oneKey), node("n2", 2, oneKey), node("n4", 4, anotherKey)
	one.begin()
	two.begin()
	suspects := func(name string) bool {
		two.mu.Lock()
		defer two.mu.Unlock()
		return two.peers[name].missed > 0
	}
	tells := func(h *heartbeats, name string) { // by chance to others: until all were told
		h.followNews([]pulseNews{{name, pulseSilent}})
		for range hearsayTimes {
			h.say()
		}
	}
	tells(stranger, "n1")
	if err := lab.Await(time.Minute, func() bool {
		tells(one, "n3")
		return suspects("n3")
	}); err != nil {
		t.Error("what a node says is not heard")
	}
	if suspects("n1") {
		t.Error("a stranger is heard")
	}
	one.followNews([]pulseNews{{"n3", pulseHeard}})
	if s, _ := one.hearsay.next(1); s.nodes != nil {
		t.Error("a node is told of that was heard again")
	}
}

// A cluster of so many nodes, each of which has the pulse and the hearsay of an agent, is played in parts of a round: one node dies.
func TestADeadNodeIsKnownToAllInSeconds(t *testing.T) {
	const count = 200
	nodes, names := nodesOf(count)
	random := rand.New(rand.NewPCG(3, 4))
	dead := "n7"
	type member struct {
		*pulse
		hearsay *hearsay
		phase   int
		knows   bool
	}
	at, all := map[netip.Addr]*member{}, []*member{}
	for _, name := range names {
		m := &member{pulse: newPulse(name), hearsay: newHearsay(name, rand.New(rand.NewPCG(random.Uint64(), 1))), phase: random.IntN(pulseParts)}
		m.follow(nodes, names)
		m.hearsay.follow(nodes)
		for _, q := range m.peers {
			q.answered = true
		}
		at[nodes[name][0]], all = m, append(all, m)
	}
	left, parts := count-1, 0
	for ; left > 0 && parts < 60*pulseParts; parts++ {
		for _, m := range all {
			if m.self == dead {
				continue
			}
			part := (parts + m.phase) % pulseParts
			ask := m.again
			if part == 0 {
				ask = m.begin
			}
			for _, a := range ask() {
				m.left(a)
				if q := m.peers[m.pulse.at[a]]; at[a].self != dead { // without the time that marks take
					q.heard, q.missed = m.round, 0
				}
			}
			for _, n := range m.judge(part == pulseParts-1) {
				if n.node != dead || n.pulseChange != pulseSilent {
					t.Fatalf("%s is told %+v", m.self, n)
				}
				m.knows = true
				left--
				m.hearsay.tell(dead)
			}
			s, to := m.hearsay.next(uint64(parts) + 1)
			for _, a := range to {
				other := at[a]
				for _, node := range other.hearsay.heard(nodes[m.self][0], s, time.Now()) {
					other.hint(node)
				}
			}
		}
	}
	if seconds := float64(parts) / pulseParts; left > 0 || seconds > 10 {
		t.Errorf("after %.1f s %d of %d do not know", seconds, left, count)
	}
}

// simulated is what 5,000 nodes know of one that dies, and what it costs them.
type simulated struct {
	median, worst float64 // seconds until nodes know
	told          float64 // datagrams of hearsay, of each node in the middle
	most          int     // of one node in a second
}

// simulate plays a cluster where each node keeps of the others what concerns the dead one: whether it asks that in each second, how many rounds went
// by, and what it was told. Lost is the share of datagrams that do not arrive.
func simulate(seed uint64, count int, lost float64, tells bool) simulated {
	type member struct {
		near          bool
		phase, missed int
		left, told    int
		turn          int // rounds until the dead one's turn, where it is far
		knows         float64
	}
	random := rand.New(rand.NewPCG(seed, 1))
	all := make([]member, count)
	turns := max(1, (count-2-pulsePeers)/pulseFurther+1)
	for i := range all {
		all[i] = member{near: random.IntN(count-1) < pulsePeers, phase: random.IntN(pulseParts), turn: random.IntN(turns), knows: -1}
	}
	var out simulated
	left := count - 1 // the last one is dead
	for parts := 0; left > 0; parts++ {
		for i := range all[:count-1] {
			m := &all[i]
			part := (parts + m.phase) % pulseParts
			if part == 0 && m.knows < 0 && (m.near || m.missed > 0 || m.turn == 0) {
				m.missed++
			}
			if part == 0 {
				m.turn = (m.turn + turns - 1) % turns
			}
			if part == pulseParts-1 && m.knows < 0 && m.missed >= pulseMissed {
				m.knows, m.left = float64(parts+1)/pulseParts, hearsayTimes
				left--
			}
			if !tells || m.left == 0 {
				continue
			}
			m.left--
			for range hearsayNodes {
				m.told++
				if o := &all[random.IntN(count)]; o.knows < 0 && random.Float64() >= lost {
					o.missed = max(o.missed, pulseMissed-1)
				}
			}
		}
	}
	var times []float64
	told := 0
	for i := range all[:count-1] {
		times = append(times, all[i].knows)
		told += all[i].told
	}
	slices.Sort(times)
	out.median, out.worst = times[len(times)/2], times[len(times)-1]
	out.told, out.most = float64(told)/float64(count-1), hearsayNodes*pulseParts
	return out
}

// 5,000 nodes, with a seed: with hearsay all know of a dead node in a few seconds, at some datagrams each, where by turns it took minutes.
func TestAmongFiveThousandNodesADeadOneIsKnownInSeconds(t *testing.T) {
	for _, lost := range []float64{0, 0.05} {
		with := simulate(1, 5000, lost, true)
		t.Logf("%v lost: %+v", lost, with)
		if with.median > 6 || with.worst > 10 || with.told > hearsayNodes*hearsayTimes {
			t.Errorf("%v lost: %+v", lost, with)
		}
	}
	without := simulate(1, 5000, 0, false)
	t.Logf("without hearsay: %+v", without)
	if without.median < 60 {
		t.Errorf("without hearsay %+v: the simulation says nothing", without)
	}
}

// Whatever arrives is taken only if it is what was sent, byte for byte.
func FuzzHearsay(f *testing.F) {
	from, to := ways[1][0], ways[1][1]
	f.Add([]byte{})
	for _, n := range []int{0, 1, hearsayMost, hearsayMost + 1} {
		in := said{at: 9, nodes: make([]uint64, n)}.encode(oneHearsayKey, from, to)
		f.Add(in)
		f.Add(in[:len(in)-1])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		s, ok := decodeSaid(in, []hearsayKey{anotherHearsayKey, oneHearsayKey}, from, to)
		if !ok {
			return
		}
		if len(s.nodes) == 0 || len(s.nodes) > hearsayMost || !slices.Equal(in, s.encode(oneHearsayKey, from, to)) {
			t.Errorf("%x is taken for %s", in, fmt.Sprint(s))
		}
	})
}
