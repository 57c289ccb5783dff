// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// A node knows its own connections to a backend of a Service that balances by connections. It tells the backend's node of them, each second, and
// is answered how many all others have: so a node adds up what others tell it of its own backends, and no packet is looked at for that. Programs
// take it for a hint (bpf/lib/load.h). A datagram goes from agent to agent, as hearsay does. Nodes that have no connections to a Service neither
// ask nor are told.
const (
	loadQuestions = 256           // are sent in a round
	loadNodes     = 1250          // in a cluster of so many times more nodes each asks so many times less often
	loadTurns     = 4             // rounds at most in which everybody is asked
	loadUsed      = 60            // rounds after its last connection that a Service is asked about
	loadKept      = 8             // rounds that what a node told counts
	loadLooks     = 16384         // backends of Services without connections are looked at in a round, whether they have some now
	loadHears     = loadTurns + 1 // rounds that a node hears others for before it answers: what it adds up is too little until then
)

// loadTables is the part of *tables.Tables that loads need.
type loadTables interface {
	Loads(since uint64) (all []tables.Load, now uint64)
	CountOpen([]*tables.Load)
	CountOpened([]*tables.Load) error
	TellOthers([]tables.Others)
}

// loads knows what this node has to tell, and what others told. It has neither sockets nor a clock.
type loads struct {
	mu       sync.Mutex
	tables   loadTables
	round    uint64                // since begin
	listed   uint64                // the state of the tables that backends is of
	backends []*loadOf             // by service port
	ports    map[uint32][]*loadOf  // of backends, by the id of their service port
	looks    int                   // the first of backends that is looked at next
	used     map[uint32]uint64     // by the id of a service port: the last round in which it had connections; none where that is long ago
	active   []*loadOf             // those of the ports of used
	where    map[string]netip.Addr // a node's address

	local map[uint64]bool    // hashes of this node's own backends
	own   map[uint64]loadRow // what this node has of these, but for connections that came by another node
	ear   loadEar
	taken takings                  // questions
	asked map[uint64]*loadQuestion // by when they were sent: those that may be answered
	sent  uint64
}

// loadOf is a backend.
type loadOf struct {
	tables.Load
	hash     uint64
	answered uint32 // Answered, when it was looked at last
	seen     bool   // it was
	before   uint64 // Connections in the last round
	known    bool   // before is
	opened   uint32 // connections, in the last round
}

// loadQuestion asks a node about backends there. Several may have the same hash, as two Services may have one endpoint.
type loadQuestion struct {
	loadMessage
	to    netip.Addr
	of    [][]*loadOf // of each row
	turns uint64
	round uint64
}

func newLoads() *loads { return &loads{ear: newLoadEar(), taken: takings{}} }

// begin works with these tables from now on.
func (l *loads) begin(t loadTables) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tables, l.round, l.used, l.asked = t, 0, map[uint32]uint64{}, map[uint64]*loadQuestion{}
	l.list(nil)
	l.listed = 0
}

// loadHash is what nodes call a backend by.
func loadHash(b tables.Load) uint64 { return pairHash(b.Protocol.String(), b.Address.String()) }

// follow says which nodes there are. Backends are listed anew where the tables have others.
func (l *loads) follow(nodes map[string][]netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.where = make(map[string]netip.Addr, len(nodes))
	for name, addresses := range nodes {
		if len(addresses) > 0 {
			l.where[name] = addresses[0]
		}
	}
	l.taken = l.taken.of(nodes)
	if all, now := l.tables.Loads(l.listed); now != l.listed {
		l.list(all)
		l.listed = now
	}
}

// list says which backends there are of Services that balance by connections. What is known of those that were there before stays.
func (l *loads) list(all []tables.Load) {
	former := make(map[uint32]*loadOf, len(l.backends))
	for _, b := range l.backends {
		former[b.ID] = b
	}
	l.backends, l.ports, l.local, l.looks = make([]*loadOf, 0, len(all)), map[uint32][]*loadOf{}, map[uint64]bool{}, 0
	for i := range all {
		b := former[all[i].ID]
		if b == nil || b.Generation != all[i].Generation || b.Port != all[i].Port {
			b = &loadOf{Load: all[i], hash: loadHash(all[i])}
		}
		b.Node, b.Local = all[i].Node, all[i].Local
		l.backends, l.ports[b.Port] = append(l.backends, b), append(l.ports[b.Port], b)
		if b.Local {
			l.local[b.hash] = true
		}
	}
}

// next begins a round: it counts, tells the tables of this node's own backends, and gives what is to be asked. An error says that connections
// cannot be counted: what is told is older then.
func (l *loads) next(now time.Time) ([]*loadQuestion, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.round++
	l.ear.forget()
	maps.DeleteFunc(l.asked, func(_ uint64, q *loadQuestion) bool { return l.round-q.round > 1 })
	err := l.count()
	l.tellOwn()
	return l.questions(uint64(now.UnixNano())), err
}

// count brings this node's connections up to date, of Services alone that have some, or had some of late.
func (l *loads) count() error {
	l.look()
	if err := l.tables.CountOpened(loadsOf(l.active)); err != nil {
		return err
	}
	l.own = map[uint64]loadRow{}
	for _, b := range l.active {
		l.counted(b)
	}
	return nil
}

// look finds the Services that have connections. Of those that had none of late some are looked at in turn, so that it takes no more time in a
// cluster of very many backends.
func (l *loads) look() {
	l.open(l.active)
	for left := min(loadLooks, len(l.backends)); left > 0; {
		some := l.backends[l.looks:min(l.looks+left, len(l.backends))]
		l.open(some)
		left -= len(some)
		l.looks = (l.looks + len(some)) % len(l.backends)
	}
	was := map[uint32]bool{}
	for _, b := range l.active {
		was[b.Port] = true
	}
	l.active = nil
	for port, last := range l.used {
		if l.round-last > loadUsed || l.ports[port] == nil {
			delete(l.used, port)
			forgetOpened(l.ports[port])
			continue
		}
		if l.active = append(l.active, l.ports[port]...); !was[port] {
			l.open(l.ports[port]) // all of them as of this round
		}
	}
}

// open counts the connections that are open, and notes which Services are used.
func (l *loads) open(some []*loadOf) {
	l.tables.CountOpen(loadsOf(some))
	for _, b := range some {
		if b.Open > 0 || b.seen && b.Answered != b.answered { // or all were over before anybody looked
			l.used[b.Port] = l.round
		}
		b.answered, b.seen = b.Answered, true
	}
}

// forgetOpened has connections that are opened from now on be counted anew.
func forgetOpened(all []*loadOf) {
	for _, b := range all {
		b.known, b.opened = false, 0
	}
}

func loadsOf(some []*loadOf) []*tables.Load {
	all := make([]*tables.Load, len(some))
	for i, b := range some {
		all[i] = &b.Load
	}
	return all
}

// counted is what came of a count.
func (l *loads) counted(b *loadOf) {
	if b.opened = 0; b.known {
		b.opened = capped(b.Connections - b.before)
	}
	if b.opened > 0 {
		l.used[b.Port] = l.round
	}
	b.before, b.known = b.Connections, true
	if b.Local {
		own := l.own[b.hash]
		l.own[b.hash] = loadRow{b.hash, own.open + b.Open - b.Carried, own.opened + b.opened}
	}
}

// tellOwn tells the tables what others have of this node's own backends. Here, a connection that came through the tunnel counts as this node's.
func (l *loads) tellOwn() {
	var all []tables.Others
	for _, b := range l.active {
		if b.Local && l.hears() {
			sum := l.ear.sums[b.hash]
			all = append(all, b.others(loadRow{b.hash, capped(sum.open - min(sum.open, uint64(b.Carried))), capped(sum.opened)}, l.turns(0)))
		}
	}
	l.tables.TellOthers(all)
}

// hears says whether everybody has had the time to tell this node.
func (l *loads) hears() bool { return l.round > loadHears }

// others is what the tables are told. Others have opened more since they told, and go on until they tell again.
func (b *loadOf) others(row loadRow, turns uint64) tables.Others {
	return tables.Others{ID: b.ID, Generation: b.Generation, Open: row.open, Unsure: capped(2 * turns * uint64(row.opened))}
}

// capped is a number that a datagram has room for, and that is no lie of a size that drowns all others.
func capped(n uint64) uint32 { return uint32(min(n, 1<<24)) }

// turns is in how many rounds everybody is asked, where there are so many questions.
func (l *loads) turns(questions int) uint64 {
	return uint64(min(loadTurns, max((questions+loadQuestions-1)/loadQuestions, (len(l.where)+loadNodes-1)/loadNodes, 1)))
}

// questions are those of this round.
func (l *loads) questions(now uint64) (all []*loadQuestion) {
	at := map[netip.Addr]map[uint64][]*loadOf{}
	for _, b := range l.active {
		to, known := l.where[b.Node]
		if b.Local || !known {
			continue
		}
		if at[to] == nil {
			at[to] = map[uint64][]*loadOf{}
		}
		at[to][b.hash] = append(at[to][b.hash], b)
	}
	for _, to := range slices.SortedFunc(maps.Keys(at), netip.Addr.Compare) {
		for hashes := range slices.Chunk(slices.Sorted(maps.Keys(at[to])), loadRows) {
			all = append(all, newQuestion(to, hashes, at[to]))
		}
	}
	turns, turn := l.turns(len(all)), 0
	return slices.DeleteFunc(all, func(q *loadQuestion) bool {
		turn++
		if uint64(turn)%turns != l.round%turns || turn > loadQuestions*loadTurns {
			return true
		}
		l.sent = max(now, l.sent+1)
		q.loadMessage.at, q.round, q.turns = l.sent, l.round, turns
		l.asked[l.sent] = q
		return false
	})
}

func newQuestion(to netip.Addr, hashes []uint64, of map[uint64][]*loadOf) *loadQuestion {
	q := &loadQuestion{to: to}
	for _, hash := range hashes {
		row := loadRow{backend: hash}
		for _, b := range of[hash] {
			row.open, row.opened = row.open+b.Open, row.opened+b.opened
		}
		q.rows, q.of = append(q.rows, row), append(q.of, of[hash])
	}
	return q
}

// takes says whether a question is of a node that there is, and was sent after what was taken of it last.
func (l *loads) takes(from netip.Addr, sent uint64, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.taken.takes(from, sent, now)
}

// answer notes what a node has of this one's backends, and says what all others have; false: it is not to be answered.
func (l *loads) answer(from netip.Addr, m loadMessage, now time.Time) (loadMessage, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.taken.takes(from, m.at, now) {
		return loadMessage{}, false
	}
	l.taken[from] = taking{m.at, now}
	out := loadMessage{answers: m.at}
	for _, row := range m.rows {
		if !l.local[row.backend] {
			out.rows = append(out.rows, loadRow{row.backend, loadUnknown, 0})
			continue
		}
		l.ear.note(from, row)
		sum, said, own := l.ear.sums[row.backend], l.ear.said[from][row.backend], l.own[row.backend]
		out.rows = append(out.rows, loadRow{row.backend, capped(sum.open - uint64(said.open) + uint64(own.open)), capped(sum.opened - uint64(said.opened) + uint64(own.opened))})
	}
	l.sent = max(uint64(now.UnixNano()), l.sent+1)
	out.at = l.sent
	return out, l.hears()
}

// awaits says whether a node was asked at this time, and has not answered.
func (l *loads) awaits(from netip.Addr, sent uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[sent]
	return q != nil && q.to == from
}

// told has the tables told what a node answers, if it answers what it was asked.
func (l *loads) told(from netip.Addr, m loadMessage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.asked[m.answers]
	if q == nil || q.to != from || !slices.EqualFunc(q.rows, m.rows, func(a, b loadRow) bool { return a.backend == b.backend }) {
		return
	}
	delete(l.asked, m.answers)
	var all []tables.Others
	for i, row := range m.rows {
		if row.open == loadUnknown {
			continue
		}
		for _, b := range q.of[i] {
			all = append(all, b.others(row, q.turns))
		}
	}
	l.tables.TellOthers(all)
}

// tellLoads begins a round of what nodes tell each other of connections. Who only observes others neither asks nor answers.
func (h *heartbeats) tellLoads() error {
	keys := h.keys()
	if len(keys) == 0 || h.mode != lb.EjectionOn {
		return nil
	}
	all, err := h.loads.next(time.Now())
	for _, q := range all {
		for own, socket := range h.tellers {
			if own.Is4() == q.to.Is4() {
				// who does not listen, as an agent of before this, does not answer
				_, _ = socket.WriteToUDPAddrPort(q.encode(keys[0], own, q.to), netip.AddrPortFrom(q.to, hearsayPort(h.port)))
			}
		}
	}
	return err
}

// takeLoad takes a question or an answer of which isLoad holds, and gives the answer to a question; nil: there is none. A stranger's costs no MAC,
// nor does an answer to what was not asked.
func (h *heartbeats) takeLoad(in []byte, by, own netip.Addr, now time.Time) (answer []byte) {
	question := loadAnswers(in) == 0
	if question && !h.loads.takes(by, sentAt(in), now) || !question && !h.loads.awaits(by, loadAnswers(in)) || h.mode != lb.EjectionOn {
		return nil
	}
	keys := h.keys()
	m, ok := decodeLoad(in, keys, by, own)
	if !ok {
		return nil
	}
	if !question {
		h.loads.told(by, m)
		return nil
	}
	out, ok := h.loads.answer(by, m, now)
	if !ok {
		return nil
	}
	return out.encode(keys[0], own, by)
}
