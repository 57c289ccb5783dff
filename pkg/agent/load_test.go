// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// What another node says of connections counts as it was said, from whom, and to whom, with a key that both have.
func TestConnectionsThatWereForgedCutOrSentElsewhereAreNotTaken(t *testing.T) {
	for _, way := range ways {
		from, to, third := way[0], way[1], way[2]
		want := loadMessage{at: 7, answers: 5, rows: []loadRow{{1, 2, 3}, {4, 5, 6}}}
		in := want.encode(oneHearsayKey, from, to)
		takes := func(in []byte, from, to netip.Addr, keys ...hearsayKey) bool {
			if !isLoad(in) {
				return false
			}
			_, ok := decodeLoad(in, keys, from, to)
			return ok
		}
		if got, ok := decodeLoad(in, []hearsayKey{anotherHearsayKey, oneHearsayKey}, from, to); !ok || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %+v, %v", from, got, ok)
		}
		for what, taken := range map[string]bool{
			"with another key":       takes(in, from, to, anotherHearsayKey),
			"without a key":          takes(in, from, to),
			"from another node":      takes(in, third, to, oneHearsayKey),
			"for another node":       takes(in, from, third, oneHearsayKey),
			"sent back":              takes(in, to, from, oneHearsayKey),
			"nothing":                takes(nil, from, to, oneHearsayKey),
			"of no backend":          takes(loadMessage{at: 7}.encode(oneHearsayKey, from, to), from, to, oneHearsayKey),
			"of very many backends":  takes(loadMessage{at: 7, rows: make([]loadRow, loadRows+1)}.encode(oneHearsayKey, from, to), from, to, oneHearsayKey),
			"hearsay of silent ones": takes(said{at: 7, nodes: make([]uint64, 5)}.encode(oneHearsayKey, from, to), from, to, oneHearsayKey),
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
		if _, ok := decodeSaid(in, []hearsayKey{oneHearsayKey}, from, to); ok {
			t.Errorf("%s: it is taken for hearsay of silent nodes", from)
		}
	}
}

// trio is two nodes with clients, and one with the server, which has the number 1 everywhere.
func trio() (one, two, server *member, now time.Time) {
	c := newCluster(2, 1)
	return c.members[0], c.members[1], c.members[2], c.now
}

// asks has a node ask, and gives what it sent. answered: the server's node answers, if it does.
func (m *member) asks(t *testing.T, server *member, now time.Time, answered bool) (all []*loadQuestion) {
	t.Helper()
	all, err := m.next(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if out, ok := server.answer(m.address, q.loadMessage, now); answered && ok {
			m.told(q.to, out)
		}
	}
	return all
}

// Each node hears what all others have, the server's node too; nothing is sent without connections; a node that has started hears for a while
// before it answers, and what a node said long ago counts no more.
func TestNodesHearHowManyConnectionsAllOthersHave(t *testing.T) {
	one, two, server, now := trio()
	has := func(m *member, open uint32, connections uint64) {
		m.open[1].Open, m.open[1].Connections = open, connections
	}
	if all := one.asks(t, server, now, true); all != nil {
		t.Fatalf("%d questions of a node that has no connections", len(all))
	}
	has(one, 7, 100)
	has(two, 3, 10)
	for round := range loadHears + 1 {
		now = now.Add(time.Second)
		one.asks(t, server, now, true)
		two.asks(t, server, now, true)
		if one.hints[1].ID != 0 {
			t.Fatalf("in round %d a node that heard nobody before tells %+v", round, one.hints[1])
		}
		if all, err := server.next(now); err != nil || all != nil {
			t.Fatalf("the server's node asks itself: %v, %v", all, err)
		}
	}
	has(server, 5, 5)
	has(one, 8, 104)
	for range 2 {
		now = now.Add(time.Second)
		server.next(now)
		one.asks(t, server, now, true)
		two.asks(t, server, now, true)
	}
	for _, row := range []struct {
		of           *member
		open, unsure uint32
	}{{one, 3 + 5, 0}, {two, 8 + 5, 0}, {server, 8 + 3, 8}} {
		if got := row.of.hints[1]; got.Open != row.open || got.Unsure != row.unsure {
			t.Errorf("%s is told %+v, want %d and %d", row.of.address, got, row.open, row.unsure)
		}
	}
	for range 9 {
		now = now.Add(time.Second)
		server.next(now)
		two.asks(t, server, now, true)
	}
	if got := two.hints[1]; got.Open != 5 {
		t.Errorf("told %+v of a node that says nothing any more, want 5", got)
	}
	has(two, 0, 10)
	sent := 0
	for range loadUsed + 2 {
		now = now.Add(time.Second)
		sent += len(two.asks(t, server, now, true))
	}
	if sent != loadUsed {
		t.Errorf("%d questions after the last connection, want %d", sent, loadUsed)
	}
	two.open[1].Answered++ // a connection that is over already
	if all := two.asks(t, server, now.Add(time.Second), true); len(all) != 1 {
		t.Errorf("%d questions after a short connection", len(all))
	}
}

// What was asked is answered once, by whom was asked, and of what was asked; what was said before is not heard again.
func TestConnectionsAreToldOnce(t *testing.T) {
	one, two, server, now := trio()
	one.open[1].Open, server.open[1].Open = 7, 1
	for range loadHears + 1 {
		now = now.Add(time.Second)
		server.next(now)
	}
	all := one.asks(t, server, now, false)
	if len(all) != 1 || len(all[0].rows) != 1 || all[0].rows[0].open != 7 {
		t.Fatalf("asked %+v", all)
	}
	now = now.Add(time.Second)
	all = one.asks(t, server, now, false)
	answers, backend := all[0].loadMessage.at, all[0].rows[0].backend
	right := loadMessage{at: 1, answers: answers, rows: []loadRow{{backend, 4, 0}}}
	for what, m := range map[string]struct {
		of     *member
		answer loadMessage
	}{
		"another node":    {two, right},
		"another time":    {server, loadMessage{answers: answers + 1, rows: right.rows}},
		"another backend": {server, loadMessage{answers: answers, rows: []loadRow{{backend + 1, 4, 0}}}},
		"two backends":    {server, loadMessage{answers: answers, rows: []loadRow{{backend, 4, 0}, {backend, 4, 0}}}},
	} {
		if one.told(m.of.address, m.answer); one.hints[1].ID != 0 {
			t.Errorf("an answer of %s is taken", what)
		}
	}
	if one.told(server.address, right); one.hints[1].Open != 4 {
		t.Error("the right answer is not taken")
	}
	right.rows[0].open = 5
	if one.told(server.address, right); one.hints[1].Open != 4 {
		t.Error("a second answer is taken")
	}
	question := loadMessage{at: uint64(now.Add(time.Hour).UnixNano()), rows: []loadRow{{backend, 9, 0}}}
	if _, ok := server.answer(one.address, question, now); !ok {
		t.Error("a question is not answered")
	}
	for what, from := range map[string]netip.Addr{"replayed": one.address, "of no node": netip.MustParseAddr("192.0.2.1")} {
		if _, ok := server.answer(from, question, now); ok {
			t.Errorf("a question %s is answered", what)
		}
	}
	question.at++
	question.rows[0].open = 1 << 31
	server.answer(one.address, question, now)
	server.open[1].Open = 1
	server.next(now)
	if got := server.hints[1]; got.Open != loadMost {
		t.Errorf("a node that says to have 2^31 connections counts as %d", got.Open)
	}
}

// A node with very many backends is asked in several datagrams, and very many nodes in several rounds, each in one of four; a node is heard of so
// many backends and no more.
func TestQuestionsAboutConnectionsAreBounded(t *testing.T) {
	nodes, names := nodesOf(2000)
	c := newCluster(1, 1)
	m := c.members[0]
	var all []tables.Load
	m.open = make([]tables.Load, 4002)
	add := func(node string, n int) {
		for range n {
			id := len(all) + 1
			m.open[id].Open = 1
			all = append(all, tables.Load{ID: uint32(id), Port: 1, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(id >> 8), byte(id)}), 80), Node: node})
		}
	}
	add("n1", loadRows+1)
	m.follows(nodes, all)
	sent, err := m.next(c.now)
	if err != nil || len(sent)+len(mustNext(t, m, c.now)) != 2 || len(m.encoded(sent)) > loadSize {
		t.Errorf("%d datagrams about %d backends of one node, %v", len(sent), loadRows+1, err)
	}
	for _, name := range names[2:1800] {
		add(name, 1)
	}
	m.follows(nodes, all)
	asked := map[netip.Addr]int{}
	for range loadTurns {
		sent := mustNext(t, m, c.now)
		if len(sent) > loadQuestions {
			t.Errorf("%d datagrams in a round", len(sent))
		}
		for _, q := range sent {
			asked[q.to]++
		}
	}
	if len(asked) < loadQuestions*loadTurns-1 {
		t.Errorf("%d nodes were asked", len(asked))
	}
}

// A node keeps of others what they say of its own backends, and of others that it does not know; what was said is forgotten.
func TestWhatIsKeptOfOthersIsBoundedByANodesOwnBackends(t *testing.T) {
	one, _, server, now := trio()
	for range loadHears + 1 {
		mustNext(t, server, now)
	}
	question := loadMessage{at: uint64(now.UnixNano()), rows: []loadRow{{server.backends[0].hash, 5, 0}, {1, 7, 0}, {2, 9, 0}}}
	answer, ok := server.answer(one.address, question, now)
	if want := []loadRow{{question.rows[0].backend, 0, 0}, {1, loadUnknown, 0}, {2, loadUnknown, 0}}; !ok || !slices.Equal(answer.rows, want) {
		t.Errorf("%v, %v is answered, want %v", answer.rows, ok, want)
	}
	if len(server.ear.sums) != 1 || len(server.ear.said[one.address]) != 1 {
		t.Errorf("kept are %v of %v", server.ear.sums, server.ear.said)
	}
	one.open[1].Open = 1
	asked := one.asks(t, server, now, false)
	one.told(server.address, loadMessage{answers: asked[0].loadMessage.at, rows: []loadRow{{asked[0].rows[0].backend, loadUnknown, 0}}})
	if one.hints[1].ID != 0 {
		t.Errorf("%+v is told of a backend that its node does not know", one.hints[1])
	}
	for range loadKept + 1 {
		mustNext(t, server, now)
	}
	if len(server.ear.sums)+len(server.ear.said) != 0 {
		t.Errorf("%v of %v is kept for ever", server.ear.sums, server.ear.said)
	}
}

// Of very many backends without connections some are looked at in a round, and all by and by; a Service that is used is looked at in each.
func TestServicesWithoutConnectionsAreLookedAtInTurn(t *testing.T) {
	const services, each = 4 * loadLooks / 10, 10
	nodes, _ := nodesOf(2)
	c := newCluster(1, 1)
	m := c.members[0]
	var all []tables.Load
	m.open = make([]tables.Load, services*each+1)
	for id := 1; id < len(m.open); id++ {
		all = append(all, tables.Load{ID: uint32(id), Port: uint32(1 + (id-1)/each), Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(id >> 16), byte(id >> 8), byte(id)}), 80), Node: "n1"})
	}
	m.follows(nodes, all)
	m.open[len(all)].Open, m.open[1].Open = 1, 1
	rounds := 0
	for rows := 0; rows < 2*each; rounds++ {
		m.looked = 0
		rows = 0
		for _, q := range mustNext(t, m, c.now) {
			rows += len(q.rows)
		}
		if m.looked > loadLooks+4*each {
			t.Fatalf("%d backends are looked at in round %d", m.looked, rounds)
		}
		if rounds > 8 {
			t.Fatalf("%d backends are asked about, want %d", rows, 2*each)
		}
	}
	m.open[len(all)-1].Open = 7
	for _, q := range mustNext(t, m, c.now) {
		for i, row := range q.rows {
			if q.of[i][0].ID == uint32(len(all)-1) && row.open != 7 {
				t.Errorf("told of %+v, want 7", row)
			}
		}
	}
	before := m.backends[0]
	if m.follows(nodes, all[:each]); m.backends[0] != before || len(mustNext(t, m, c.now)) != 1 || len(m.active) != each || len(m.used) != 1 {
		t.Errorf("%d backends of %d Services are asked about once the others are gone", len(m.active), len(m.used))
	}
}

func mustNext(t *testing.T, m *member, now time.Time) []*loadQuestion {
	t.Helper()
	all, err := m.next(now)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// encoded is the longest of these datagrams.
func (m *member) encoded(all []*loadQuestion) (longest []byte) {
	for _, q := range all {
		if in := q.encode(oneHearsayKey, m.address, q.to); len(in) > len(longest) {
			longest = in
		}
	}
	return longest
}

// Over sockets: a node is told what another one and the server's have; a stranger is not answered, and what nobody takes costs no MAC.
func TestNodesTellEachOtherOfConnectionsOverSockets(t *testing.T) {
	free, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 8, 1)})
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(free.LocalAddr().(*net.UDPAddr).Port)
	_ = free.Close()
	c := newCluster(3, 1)
	nodes, macs := map[string][]netip.Addr{}, 0
	for i := range c.members {
		nodes[fmt.Sprint("n", i)] = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 8, byte(1 + i)})}
	}
	var all []*heartbeats
	for i, m := range c.members {
		key := map[bool]string{true: anotherKey, false: oneKey}[i == 2]
		h := newHeartbeats(Options{NodeName: fmt.Sprint("n", i), TunnelKeyFile: "key", CarryPort: port - 1}, nil, func() []hearsayKey { return hearsayKeys([]string{key}) })
		h.loads = m.loads
		m.follow(nodes)
		m.address = nodes[fmt.Sprint("n", i)][0]
		if err := h.tellers.open([]netip.Addr{m.address}, hearsayPort(h.port), func(s *net.UDPConn) { go h.listen(s) }); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(h.tellers.close)
		m.open[1].Open = uint32(1 + i)
		all = append(all, h)
	}
	hint := func(m *member) tables.Others {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.hints[1]
	}
	if err := lab.Await(time.Minute, func() bool {
		for _, h := range all {
			if err := h.tellLoads(); err != nil {
				t.Fatal(err)
			}
		}
		return hint(c.members[0]).Open == 2+4 && hint(c.members[1]).Open == 1+4
	}); err != nil {
		t.Errorf("told %+v and %+v, %v", hint(c.members[0]), hint(c.members[1]), err)
	}
	if got := hint(c.members[2]); got.ID != 0 {
		t.Errorf("a stranger is told %+v", got)
	}
	h := newHeartbeats(Options{NodeName: "n0", TunnelKeyFile: "key"}, nil, func() []hearsayKey { macs++; return []hearsayKey{oneHearsayKey} })
	h.loads = c.members[3].loads
	in := loadMessage{at: 1, rows: make([]loadRow, 1)}.encode(oneHearsayKey, nodes["n0"][0], nodes["n3"][0])
	h.takeLoad(in, netip.MustParseAddr("192.0.2.1"), nodes["n3"][0], time.Now())
	h.takeLoad(in, nodes["n0"][0], nodes["n3"][0], time.Now())
	in = loadMessage{at: 1, answers: 5, rows: make([]loadRow, 1)}.encode(oneHearsayKey, nodes["n0"][0], nodes["n3"][0])
	if h.takeLoad(in, nodes["n0"][0], nodes["n3"][0], time.Now()); macs != 0 {
		t.Errorf("%d MACs for a stranger's, a replayed question and an answer that nobody asked for", macs)
	}
	h.mode = lb.EjectionObserve
	in = loadMessage{at: 1 << 62, rows: make([]loadRow, 1)}.encode(oneHearsayKey, nodes["n0"][0], nodes["n3"][0])
	if h.takeLoad(in, nodes["n0"][0], nodes["n3"][0], time.Now()) != nil {
		t.Error("who only observes answers")
	}
}

// Whatever arrives is taken only if it is what was sent, byte for byte.
func FuzzLoadMessage(f *testing.F) {
	from, to := ways[1][0], ways[1][1]
	f.Add([]byte{})
	for _, n := range []int{0, 1, loadRows, loadRows + 1} {
		in := loadMessage{at: 9, answers: 8, rows: make([]loadRow, n)}.encode(oneHearsayKey, from, to)
		f.Add(in)
		f.Add(in[:len(in)-1])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if !isLoad(in) {
			return
		}
		m, ok := decodeLoad(in, []hearsayKey{anotherHearsayKey, oneHearsayKey}, from, to)
		if ok && (len(m.rows) == 0 || len(m.rows) > loadRows || !slices.Equal(in, m.encode(oneHearsayKey, from, to))) {
			t.Errorf("%x is taken for %+v", in, m)
		}
	})
}

// What it takes to hear five thousand nodes, and to answer them: each asks about so many of this node's backends. A question is one operation.
func BenchmarkAnsweringFiveThousandNodes(b *testing.B) {
	const nodes = 5000
	own := netip.MustParseAddr("10.1.255.1")
	names := map[string][]netip.Addr{}
	for i := range nodes {
		names[fmt.Sprint("n", i)] = []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}
	}
	for _, backends := range []int{1, 16, loadRows} {
		b.Run(fmt.Sprint(backends), func(b *testing.B) {
			h := newHeartbeats(Options{NodeName: "own", TunnelKeyFile: "key"}, nil, func() []hearsayKey { return []hearsayKey{oneHearsayKey} })
			h.loads.taken, h.loads.local, h.loads.round = h.loads.taken.of(names), map[uint64]bool{}, loadHears+1
			rows := make([]loadRow, backends)
			for i := range rows {
				rows[i] = loadRow{uint64(i), 3, 1}
				h.loads.local[uint64(i)] = true
			}
			in, from := make([][]byte, nodes), make([]netip.Addr, nodes)
			now := time.Now()
			for i := range b.N {
				if i%nodes == 0 {
					b.StopTimer()
					for n := range nodes {
						from[n] = names[fmt.Sprint("n", n)][0]
						in[n] = loadMessage{at: uint64(now.UnixNano()) + uint64(i), rows: rows}.encode(oneHearsayKey, from[n], own)
					}
					b.StartTimer()
				}
				if h.takeLoad(in[i%nodes], from[i%nodes], own, now) == nil {
					b.Fatal("a node is not answered")
				}
			}
		})
	}
}
