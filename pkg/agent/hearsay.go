// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A node asks only some others in each second. Who finds one of these silent tells more nodes, by chance whom, and each that then finds the same by
// its own questions tells others: in a few seconds all know, as in SWIM. What is told is a hint to ask, and nothing else: nobody leaves out a node
// because another said so. The datagram goes from agent to agent, at the port behind the tunnel's.
const (
	hearsayNodes = 16   // are told in a part of a round
	hearsayTimes = 4    // parts in which each name is told
	hearsayMost  = 64   // names in a datagram
	hearsayKept  = 4096 // names at most wait

	hearsayHead = 12 // bytes: what it is, and when it was sent
	hearsayMAC  = 16
	hearsaySize = hearsayHead + hearsayMost*8 + hearsayMAC
)

var hearsayMagic = [4]byte{'n', 'l', 'h', '1'}

// hearsayKey authenticates what nodes with a key in common tell each other.
type hearsayKey [sha256.Size]byte

// hearsayKeys are of the keys of a file: this node sends with the first, and takes what was sent with either. A key that is none gives none.
func hearsayKeys(keys []string) (all []hearsayKey) {
	for _, key := range keys {
		if key == noTunnelKey {
			continue
		}
		sum := hmac.New(sha256.New, []byte(key))
		_, _ = io.WriteString(sum, "nearlb hearsay")
		all = append(all, hearsayKey(sum.Sum(nil)))
	}
	return all
}

// mac is of a datagram without it, for one way: what was sent to one node says nothing to another.
func (k hearsayKey) mac(said []byte, from, to netip.Addr) []byte {
	f, t := from.As16(), to.As16()
	sum := hmac.New(sha256.New, k[:])
	sum.Write(f[:])
	sum.Write(t[:])
	sum.Write(said)
	return sum.Sum(nil)[:hearsayMAC]
}

// signed is a datagram without its MAC, if that was made with one of the keys.
func signed(in []byte, keys []hearsayKey, from, to netip.Addr) (out []byte, ok bool) {
	out, mac := in[:len(in)-hearsayMAC], in[len(in)-hearsayMAC:]
	return out, slices.ContainsFunc(keys, func(k hearsayKey) bool { return hmac.Equal(mac, k.mac(out, from, to)) })
}

// said is what a datagram says: when it was sent, by the sender's clock, and which nodes do not answer, by the hashes of their names.
type said struct {
	at    uint64
	nodes []uint64
}

func (s said) encode(key hearsayKey, from, to netip.Addr) []byte {
	out := binary.BigEndian.AppendUint64(hearsayMagic[:], s.at)
	for _, node := range s.nodes {
		out = binary.BigEndian.AppendUint64(out, node)
	}
	return append(out, key.mac(out, from, to)...)
}

func decodeSaid(in []byte, keys []hearsayKey, from, to netip.Addr) (s said, ok bool) {
	names := len(in) - hearsayHead - hearsayMAC
	if names <= 0 || names%8 != 0 || len(in) > hearsaySize || [4]byte(in) != hearsayMagic {
		return said{}, false
	}
	out, ok := signed(in, keys, from, to)
	if !ok {
		return said{}, false
	}
	for at := hearsayHead; at < len(out); at += 8 {
		s.nodes = append(s.nodes, binary.BigEndian.Uint64(out[at:]))
	}
	s.at = sentAt(out)
	return s, true
}

func sentAt(head []byte) uint64 { return binary.BigEndian.Uint64(head[4:]) }

// hearsay knows what is to be told, and whom. It has neither sockets nor a clock.
type hearsay struct {
	self string

	mu     sync.Mutex
	random *rand.Rand
	nodes  []string // all that there are, but this one
	where  map[string]netip.Addr
	named  map[uint64]string
	taken  takings
	sent   uint64
	told   []telling // oldest first
}

// takings are what was taken of nodes last, by their addresses.
type takings map[netip.Addr]taking

// taking is when something was sent, by the sender's clock, and when it was taken.
type taking struct {
	sent uint64
	at   time.Time
}

// of keeps those of these nodes, and has one of each of their addresses.
func (t takings) of(nodes map[string][]netip.Addr) takings {
	all := takings{}
	for _, addresses := range nodes {
		for _, a := range addresses {
			all[a] = t[a]
		}
	}
	return all
}

// takes says whether something is of a node that there is, and was sent after what was taken of it last.
func (t takings) takes(from netip.Addr, sent uint64, now time.Time) bool {
	last, known := t[from]
	return known && (sent > last.sent || now.Sub(last.at) >= hearsayForgets)
}

// hearsayForgets is how long after the last thing that was taken of a node an earlier time of its clock is taken again: clocks are set back.
const hearsayForgets = 5 * time.Minute

// telling is a name that is told.
type telling struct {
	node string
	left int // parts
}

func newHearsay(self string, random *rand.Rand) *hearsay {
	return &hearsay{self: self, random: random, taken: takings{}}
}

func nodeHash(name string) uint64 { return pairHash("", name) }

// follow says which nodes there are.
func (h *hearsay) follow(nodes map[string][]netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.nodes, h.where, h.named = nil, make(map[string]netip.Addr, len(nodes)), make(map[uint64]string, len(nodes))
	others := maps.Clone(nodes)
	delete(others, h.self)
	h.taken = h.taken.of(others)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if name == h.self || len(nodes[name]) == 0 {
			continue
		}
		h.nodes = append(h.nodes, name)
		h.where[name], h.named[nodeHash(name)] = nodes[name][0], name
	}
}

// tell has others told that a node does not answer.
func (h *hearsay) tell(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = append(slices.DeleteFunc(h.told, func(t telling) bool { return t.node == node }), telling{node, hearsayTimes})
	h.told = h.told[max(0, len(h.told)-hearsayKept):]
}

// forget ends that: the node was heard.
func (h *hearsay) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.told = slices.DeleteFunc(h.told, func(t telling) bool { return t.node == node })
}

// next is what is told in a part of a round, the latest first, and to whom; nobody where there is nothing to say.
func (h *hearsay) next(now uint64) (s said, to []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.told) == 0 || len(h.nodes) == 0 {
		return said{}, nil
	}
	first := max(0, len(h.told)-hearsayMost)
	about := map[string]bool{}
	for i := len(h.told) - 1; i >= first; i-- {
		h.told[i].left--
		about[h.told[i].node] = true
		s.nodes = append(s.nodes, nodeHash(h.told[i].node))
	}
	h.told = slices.DeleteFunc(h.told, func(t telling) bool { return t.left <= 0 })
	h.sent = max(now, h.sent+1)
	s.at = h.sent
	for range min(hearsayNodes, len(h.nodes)) { // somebody may be told twice
		if name := h.nodes[h.random.IntN(len(h.nodes))]; !about[name] {
			to = append(to, h.where[name])
		}
	}
	return s, to
}

// takes says whether something is of a node that there is, and was sent after what was taken of it last.
func (h *hearsay) takes(from netip.Addr, sent uint64, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.taken.takes(from, sent, now)
}

// heard gives the names of nodes that another one says to be silent, if that is to be taken.
func (h *hearsay) heard(from netip.Addr, s said, now time.Time) (nodes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.taken.takes(from, s.at, now) {
		return nil
	}
	h.taken[from] = taking{s.at, now}
	for _, hash := range s.nodes {
		if name := h.named[hash]; name != "" {
			nodes = append(nodes, name)
		}
	}
	return nodes
}

// hearsayPort is the one behind the tunnel's; 0: there is none, and nodes find the silent by themselves.
func hearsayPort(tunnel uint16) uint16 { return tunnel + 1 }

// followNews has other nodes told of those that this one has found silent.
func (h *heartbeats) followNews(news []pulseNews) {
	for _, n := range news {
		if n.pulseChange == pulseSilent {
			h.hearsay.tell(n.node)
		} else {
			h.hearsay.forget(n.node)
		}
	}
}

// say tells other nodes what there is to say.
func (h *heartbeats) say() {
	keys := h.keys()
	if len(keys) == 0 {
		return
	}
	s, all := h.hearsay.next(uint64(time.Now().UnixNano()))
	for _, to := range all {
		for own, socket := range h.tellers {
			if own.Is4() == to.Is4() {
				// who does not listen, as an agent of before this, is not told
				_, _ = socket.WriteToUDPAddrPort(s.encode(keys[0], own, to), netip.AddrPortFrom(to, hearsayPort(h.port)))
			}
		}
	}
}

// listenAt has a socket at each of the node's own addresses.
func (h *heartbeats) listenAt(own []netip.Addr) error {
	port := hearsayPort(h.port)
	if port == 0 {
		return nil
	}
	return h.tellers.open(own, port, func(s *net.UDPConn) { go h.listen(s) })
}

// listen takes what other nodes say, until the socket is closed.
func (h *heartbeats) listen(socket *net.UDPConn) {
	own := socket.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	buffer := make([]byte, max(hearsaySize, loadSize)+1)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || from.Port() != hearsayPort(h.port) {
			continue
		}
		in, by := buffer[:n], from.Addr().Unmap()
		if !isLoad(in) {
			h.take(in, by, own, time.Now())
		} else if answer := h.takeLoad(in, by, own, time.Now()); answer != nil {
			_, _ = socket.WriteToUDPAddrPort(answer, from)
		}
	}
}

// take has those nodes asked that a datagram names. A stranger's costs no MAC.
func (h *heartbeats) take(in []byte, by, own netip.Addr, now time.Time) {
	if len(in) < hearsayHead || !h.hearsay.takes(by, sentAt(in), now) {
		return
	}
	if s, ok := decodeSaid(in, h.keys(), by, own); ok {
		for _, node := range h.hearsay.heard(by, s, now) {
			h.hint(node)
		}
	}
}
