// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"sync"
)

// A node asks others by hellos of the tunnel whether they are there; the other node's programs answer, with an agent or without one. A round of
// questions begins each second, and has five parts. Who has answered one question and then none of three rounds is silent.
const (
	pulseParts   = 5    // of a round: who has missed one is asked in each
	pulseMissed  = 3    // rounds
	pulsePeers   = 64   // nodes that are asked in each round
	pulseLeast   = 3    // as many nodes are asked, with backends or without: somebody has to witness that this node hears at all
	pulseFurther = 10   // of the other nodes, so many are asked in a round, one after the other
	pulseMost    = 256  // nodes at most are asked in a round, however many are silent
	pulseKnown   = 4096 // nodes at most are known that may come to be asked
)

// pulse knows who answers: who is asked, and what comes of that. It has neither sockets nor a clock.
type pulse struct {
	self   string
	secret [sha256.Size]byte // of the marks in questions

	mu    sync.Mutex
	peers map[string]*peer
	order []string // all peers: those that are asked in each round, then the others
	near  int      // the first so many of order
	next  int      // of the others, whose turn it is
	round uint64
	at    map[netip.Addr]string // name of the peer that has an address
	known map[string]bool       // nodes that may come to be peers: they were silent when they were last, or (true) an earlier agent left them out
}

// peer is another node.
type peer struct {
	addresses []netip.Addr // of families that this node has, too
	answered  bool         // it has answered, and was not found alive since though silent
	heard     uint64       // round in which it answered last
	asked     uint64       // round in which a question to it left last
	missed    int          // rounds since in which it was asked
	doubted   bool         // one of its backends does not answer: it is asked in each round
	silent    bool         // as was told last
}

// pulseNews is what has become of a node.
type pulseNews struct {
	node string
	pulseChange
}

type pulseChange int

const (
	pulseSilent pulseChange = iota
	pulseHeard              // it was silent, and answers
	pulseUnused             // it was silent, and is asked no more, as no backend there takes connections
	pulseStill              // it was silent to an earlier agent, which left its backends out
)

func newPulse(self string) *pulse {
	p := &pulse{self: self, peers: map[string]*peer{}, at: map[netip.Addr]string{}, known: map[string]bool{}}
	rand.Read(p.secret[:])
	return p
}

// follow says which nodes there are, and of which of them backends take connections. It gives silent ones that are asked no more, and those of an
// earlier agent that are asked now. A silent node with such backends is asked where it was, also after its Node object has gone: it has to be heard before its backends get connections.
func (p *pulse) follow(nodes map[string][]netip.Addr, used []string) (news []pulseNews) {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes = maps.Clone(nodes)
	for _, name := range used {
		if q := p.peers[name]; q != nil && q.silent && len(nodes[name]) == 0 {
			nodes[name] = slices.DeleteFunc(q.addresses, func(a netip.Addr) bool { return taken(nodes, a) })
		}
	}
	order := p.ring(nodes, used)
	peers, at := make(map[string]*peer, len(order)), make(map[netip.Addr]string, len(order))
	for _, name := range order {
		if peers[name] = p.peers[name]; peers[name] == nil {
			_, known := p.known[name]
			if peers[name] = (&peer{answered: known}); p.known[name] {
				news = append(news, peers[name].stays(name))
			}
			delete(p.known, name)
		}
		peers[name].addresses = nodes[name]
		for _, a := range nodes[name] {
			if at[a] == "" { // else a Node object was left behind that has the address, too: those with backends come first
				at[a] = name
			}
		}
	}
	for name, was := range p.peers {
		if peers[name] == nil && was.silent {
			news = append(news, pulseNews{name, pulseUnused})
			p.know(name, false)
		}
	}
	p.peers, p.order, p.at, p.near = peers, order, at, min(len(order), pulsePeers)
	return news
}

// know notes a node that may come to be a peer, in the place of any other where there are too many: nodes come and go for as long as an agent runs.
func (p *pulse) know(name string, out bool) {
	for old := range p.known {
		if len(p.known) < pulseKnown {
			break
		}
		delete(p.known, old)
	}
	p.known[name] = out
}

// taken says whether a node has an address.
func taken(nodes map[string][]netip.Addr, a netip.Addr) bool {
	for _, addresses := range nodes {
		if slices.Contains(addresses, a) {
			return true
		}
	}
	return false
}

// ring has those of used that are asked in each round first: the nearest by a hash of both names, so that each node is asked by as many others as
// any. Where there are few, others follow.
func (p *pulse) ring(nodes map[string][]netip.Addr, used []string) []string {
	known := func(name string) bool { return name != p.self && len(nodes[name]) > 0 }
	order := p.byDistance(slices.DeleteFunc(slices.Clone(used), func(name string) bool { return !known(name) }))
	if len(order) >= pulseLeast {
		return order
	}
	rest := slices.DeleteFunc(slices.Collect(maps.Keys(nodes)), func(name string) bool { return !known(name) || slices.Contains(order, name) })
	return append(order, p.byDistance(rest)[:min(len(rest), pulseLeast-len(order))]...)
}

// byDistance sorts by a hash of the name and this node's.
func (p *pulse) byDistance(names []string) []string {
	type place struct {
		name string
		at   uint64
	}
	all := make([]place, len(names))
	for i, name := range names {
		all[i] = place{name, pairHash(p.self, name)}
	}
	slices.SortFunc(all, func(a, b place) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.name, b.name)) })
	for i := range all {
		names[i] = all[i].name
	}
	return names
}

// pairHash is FNV-1a of both, with its bits mixed.
func pairHash(from, to string) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range []string{from, "\x00", to} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	return h ^ h>>33
}

// begin begins a round, and gives those that are asked in it.
func (p *pulse) begin() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.round++
	asked := slices.Clone(p.order[:p.near])
	rest := p.order[p.near:]
	for i := range rest { // turn by turn, so that everybody gets one where too many are silent
		name := rest[(p.next+i)%len(rest)]
		if q := p.peers[name]; i < pulseFurther || (q.missed > 0 || q.doubted) && len(asked) < pulseMost {
			asked = append(asked, name)
		}
	}
	if len(rest) > 0 {
		p.next = (p.next + pulseFurther) % len(rest)
	}
	return p.addresses(asked)
}

// again gives those that have missed a round, and are to be asked once more in this one.
func (p *pulse) again() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	var asked []string
	for name, q := range p.peers {
		if q.missed > 1 && q.answered && !q.silent {
			asked = append(asked, name)
		}
	}
	return p.addresses(asked[:min(len(asked), pulseMost)])
}

func (p *pulse) addresses(names []string) (to []netip.Addr) {
	for _, name := range names {
		to = append(to, p.peers[name].addresses...)
	}
	return to
}

// left is that a question has left for an address. The round counts as missed from then on, unless the answer has come already.
func (p *pulse) left(to netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.peers[p.at[to]]; q != nil && q.asked != p.round {
		q.asked = p.round
		if q.heard != p.round {
			q.missed++
		}
	}
}

// mark is what a question to an address has in this round, and its answer must have.
func (p *pulse) mark(to netip.Addr) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.markOf(to, p.round)
}

func (p *pulse) markOf(to netip.Addr, round uint64) uint64 {
	of := to.As16()
	sum := hmac.New(sha256.New, p.secret[:])
	sum.Write(of[:])
	sum.Write(binary.BigEndian.AppendUint64(nil, round))
	return binary.BigEndian.Uint64(sum.Sum(nil))
}

// heard notes an answer, if it is one to a question of the last rounds.
func (p *pulse) heard(from netip.Addr, mark uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.peers[p.at[from]]
	if q == nil {
		return false
	}
	for back := range min(p.round, uint64(pulseMissed)+1) {
		if hmac.Equal(binary.BigEndian.AppendUint64(nil, mark), binary.BigEndian.AppendUint64(nil, p.markOf(from, p.round-back))) {
			q.answered, q.heard, q.missed, q.doubted = true, p.round, 0, false
			return true
		}
	}
	return false
}

// judge says who has become silent, and who is that no more. over: the round is. Where this node hears nobody of several, it is the one that is cut
// off, and nobody becomes silent. Of two nodes alone none can tell; the other's backends cannot be reached either way, and are asked before anything
// is made of it.
func (p *pulse) judge(over bool) (news []pulseNews) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hears := len(p.order) == 1
	for _, q := range p.peers {
		hears = hears || q.answered && q.heard == p.round
	}
	for _, name := range p.order {
		q := p.peers[name]
		silent := q.silent && q.missed > 0 || over && hears && q.answered && q.missed >= pulseMissed
		if silent != q.silent {
			q.silent = silent
			change := pulseHeard
			if silent {
				change = pulseSilent
			}
			news = append(news, pulseNews{name, change})
		}
	}
	return news
}

// doubt has a node asked in each round until it answers.
func (p *pulse) doubt(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.peers[node]; q != nil {
		q.doubted = true
	}
}

// hint is that another node says of one that it does not answer: it is asked in what is left of this round and in the next, and silent if it answers
// none of these. One that has answered in this round is not in doubt, nor one that never answered.
func (p *pulse) hint(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.peers[node]; q != nil && q.answered && q.heard != p.round && q.missed < pulseMissed-1 {
		q.missed, q.asked = pulseMissed-1, p.round
	}
}

// alive is that a backend of a silent node answers: whatever keeps that node from answering, it is not silent before it has answered again.
func (p *pulse) alive(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q := p.peers[node]; q != nil {
		q.answered, q.missed, q.silent = false, 0, false
	}
}

// stays takes a node for one that has answered an earlier agent, and was silent then: the first answer ends that.
func (q *peer) stays(name string) pulseNews {
	q.answered, q.silent, q.missed = true, true, pulseMissed
	return pulseNews{name, pulseStill}
}

// remember is that an earlier agent, or this one with other tables, has left the backends of nodes out; and who was told to be silent is to be told
// of again.
func (p *pulse) remember(nodes []string) (news []pulseNews) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.peers {
		q.silent = false
	}
	p.known = map[string]bool{}
	for _, name := range nodes {
		if q := p.peers[name]; q != nil {
			news = append(news, q.stays(name))
		} else {
			p.know(name, true)
		}
	}
	return news
}

// count says how many nodes answer of those that did, and who does not.
func (p *pulse) count() (answer int, silent []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	silent = []string{}
	for name, q := range p.peers {
		switch {
		case q.silent:
			silent = append(silent, name)
		case q.answered:
			answer++
		}
	}
	slices.Sort(silent)
	return answer, silent
}
