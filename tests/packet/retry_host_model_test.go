// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// hostHistory is what became of the connections of one socket address of the host to its own server, and what is left of them in the flow table.
type hostHistory struct {
	site
	syn    packet
	random *rand.Rand
	said   []string

	first  bool       // there is an entry of the socket
	second []hostFlow // entries that servers' answers find, of connections before as well
	now    hostFlow   // of the first entry
}

// hostFlow is a server, and how it sees the socket.
type hostFlow struct{ server, seen netip.AddrPort }

func (h *hostHistory) say(format string, values ...any) {
	h.said = append(h.said, fmt.Sprintf(format, values...))
}

// out is a packet of the socket as its server sees it.
func (h *hostHistory) out(p packet) packet { return p.from(h.now.seen).to(h.now.server) }

// step does one thing to the connection.
func (h *hostHistory) step(servers []netip.AddrPort) {
	switch h.random.IntN(12) {
	case 0:
		h.again(servers[h.random.IntN(len(servers))])
	case 1: // another connection, which begins with its own server
		h.say("a new connection")
		h.passes(toNet, h.syn, "pass_not_service")
		if h.first {
			h.forgetSecond()
		}
		h.first = false
	case 2:
		h.say("the first entry is evicted")
		h.lose(0)
		h.first = false
	case 3:
		h.say("second entries are evicted")
		h.lose(uint8(bpf.NearlbFlowFlagsFLOW_ALIAS))
		h.second = nil
	case 4:
		h.say("days pass")
		h.pass(10 * 24 * 3600)
		h.first, h.second = false, nil
	case 5:
		h.close()
	default:
		h.speak()
	}
}

// close has both sides end the connection; what is on its way goes on.
func (h *hostHistory) close() {
	h.speak()
	if !h.first {
		return
	}
	h.say("it closes")
	answer := h.out(h.syn).reply("FA", "")
	h.becomes(fromNet, answer.bytes(), answer.from(h.syn.dst).to(h.syn.src).bytes(), "translate_reply", actUnspec)
	for _, flags := range []string{"FA", "A"} {
		h.becomes(toNet, h.syn.with(flags, "").bytes(), h.out(h.syn).with(flags, "").bytes(), "translate_established", actRedirect)
	}
}

// again sends the connection's SYN once more, which goes to a server.
func (h *hostHistory) again(to netip.AddrPort) {
	h.say("the SYN comes again, to %s", to)
	if h.first { // as retry_leave does
		h.lose(uint8(bpf.NearlbFlowFlagsFLOW_ALIAS))
		h.second = nil
	}
	got := h.sendsAgain(h.syn, to)
	src, dst := endpoints(h, got.frame)
	if got.verdict != "translate_retry" || dst != to || !bytes.Equal(got.frame, h.syn.from(src).to(to).bytes()) {
		h.Fatalf("%v: verdict %s, packet out\n%s", h.said, got.verdict, show(got.frame))
	}
	h.first, h.now = true, hostFlow{to, src}
	h.second = append(h.without(h.now), h.now)
}

// speak has each side send something.
func (h *hostHistory) speak() {
	h.say("all speak")
	data, found := h.syn.with("PA", "hello"), h.has(h.now)
	switch {
	case !h.first:
		h.passes(toNet, data, "pass_not_service")
	case found:
		h.becomes(toNet, data.bytes(), h.out(data).bytes(), "translate_established", actRedirect)
	default:
		h.becomes(toNet, data.bytes(), h.out(data).bytes(), "translate_recover", actRedirect)
		h.second = append(h.second, h.now)
	}
	for _, of := range h.second {
		answer := h.syn.from(of.seen).to(of.server).reply("PA", "hello yourself")
		h.becomes(fromNet, answer.bytes(), answer.from(h.syn.dst).to(h.syn.src).bytes(), "translate_reply", actUnspec)
	}
	late := h.syn.reply("PA", "hello yourself")
	if !h.first {
		h.passes(fromNet, late, "pass_unknown_reply")
		return
	}
	if got, err := h.run(fromNet, late.bytes()); err != nil || got.verdict != "reject_late_answer" {
		h.Errorf("what its own server sends: %s, %v", got.verdict, err)
	}
}

func (h *hostHistory) has(f hostFlow) bool { return len(h.without(f)) < len(h.second) }

func (h *hostHistory) without(f hostFlow) (others []hostFlow) {
	for _, of := range h.second {
		if of != f {
			others = append(others, of)
		}
	}
	return others
}

func (h *hostHistory) forgetSecond() { h.second = h.without(h.now) }

// lose frees entries that have this of the flag for second ones.
func (h *hostHistory) lose(alias uint8) {
	h.editFlows(func(f *bpf.NearlbFlow) {
		if f.Flags&uint8(bpf.NearlbFlowFlagsFLOW_ALIAS) == alias {
			f.Word &^= uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK)
		}
	})
}

// Connections of one address of the host begin, go elsewhere, lose what is remembered of them, and are followed by others: packets go where the
// connection is that they are of, and answers of nobody else reach its socket.
func TestRandomHistoriesOfConnectionsOfTheHostGoWhereTheyAre(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2, 3, 4))
		servers := []netip.AddrPort{at(w.pod(2), 8080), at(w.pod(4), 8080)}
		for seed := range uint64(16) {
			s.evict()
			h := &hostHistory{site: s, syn: w.packet(at(w.own(), 41000), at(w.pod(3), 8080)), random: rand.New(rand.NewPCG(seed, 1))}
			h.again(servers[0])
			for range 12 {
				if h.step(servers); h.Failed() {
					h.Fatalf("%v", h.said)
				}
			}
		}
	}, lb.TCP)
}
