// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	miekg "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// dnsFixed is the length of a message's header; its name follows.
const dnsFixed = 12

// questions are messages to the cluster's DNS: what the table answers, the same cut, and what only harms.
func questions() (all [][]byte) {
	for _, name := range []string{"web.prod.svc.cluster.local", "db.prod.svc.cluster.local", "db-3.db.prod.svc.cluster.local",
		"www.example.com.prod.svc.cluster.local", "bare.svc.cluster.local", "www.example.com"} {
		all = append(all, question(name, miekg.TypeA), question(name, miekg.TypeAAAA, withEDNS(1232, true)))
	}
	whole := question("web.prod.svc.cluster.local", miekg.TypeA, withEDNS(1232, false))
	for n := 0; n < len(whole); n += 5 {
		all = append(all, whole[:n])
	}
	for _, name := range hostileNames() {
		all = append(all, slices.Concat(whole[:dnsFixed-2], []byte{0, 0}, name, []byte{0, 1, 0, 1}))
	}
	plain := question("web.prod.svc.cluster.local", miekg.TypeA)
	for _, questions := range []uint16{0, 2, 0xffff} {
		counted := slices.Clone(plain)
		binary.BigEndian.PutUint16(counted[4:], questions)
		all = append(all, counted, slices.Concat(counted, plain[dnsFixed:]), slices.Concat(counted, []byte{0xc0, dnsFixed, 0, 28, 0, 1}))
	}
	return all
}

// hostileNames are names as they are on the wire, of which only the first is one.
func hostileNames() [][]byte {
	label := func(n int) string { return string(rune(n)) + strings.Repeat("a", n) }
	const suffix = "\x04prod\x03svc\x07cluster\x05local\x00"
	long := label(63) + label(63) + label(63)
	left := 255 - len(long) - len(suffix)
	var all [][]byte
	for _, name := range []string{
		long + label(left-1) + suffix, // of 255 bytes, the most
		long + label(left) + suffix,
		long + label(63) + label(63) + suffix,
		strings.Repeat("\x01a", 120) + suffix,
		"\xc0\x0c",                       // a pointer to itself
		"\xc0\x00",                       // to the header
		"\xff\xff",                       // beyond the message
		"\x03web\xc0\x0c",                // to its own beginning
		"\x03web\xc0\x18" + suffix,       // forward
		"\x40" + suffix, "\x80" + suffix, // labels of no kind
		label(63), // without an end
		"\x00", "",
	} {
		all = append(all, []byte(name))
	}
	return all
}

// addQuestions has the fuzzer begin with questions of a pod, too.
func addQuestions(f *testing.F) {
	for _, w := range worlds(lb.UDP) {
		in := w.packet(at(w.pod(1), 41000), at(w.vip(14), 53))
		for _, message := range questions() {
			f.Add(in.with("", string(message)).bytes(), false, false, false)
		}
	}
}

// answersBoth has the programs answer questions of both families, and sees that they do.
func (r *rig) answersBoth(f *testing.F) *dns.Responder {
	own, view := startResponder(f), shop()
	for _, w := range worlds(lb.UDP) {
		s := own.before(w, w.tier(53, 3))
		s.name, s.address = "dns-"+w.String(), at(w.vip(14), 53)
		r.publish(w.decide(s))
	}
	r.beat(true)
	responder := dns.NewResponder(view, namesOptions())
	view.Mirror(responder, r.tables.Answers(), func(err error) { f.Errorf("mirror names: %v", err) })
	for _, w := range worlds(lb.UDP) {
		r.expect(fromPod, w.packet(at(w.pod(1), 41000), at(w.vip(14), 53)).with("", string(questions()[0])), "reject_name")
	}
	return responder
}

// checkAnswer sees that an answer of the programs is the responder's.
func (n namedWorld) checkAnswer(asked []byte, got outcome) {
	n.Helper()
	question, answer := message(asked), message(got.frame)
	if want := n.says(question); !bytes.Equal(sortedAddresses(want), sortedAddresses(answer)) {
		n.Errorf("answer to %x\nby the responder %x\nby the program   %x", question, want, answer)
	}
}

// message is what a frame's UDP header says that it carries. The programs answer nothing that has options or extension headers.
func message(frame []byte) []byte {
	header := ethernetHeader + 20
	if binary.BigEndian.Uint16(frame[12:]) == 0x86dd {
		header = ethernetHeader + 40
	}
	length := int(binary.BigEndian.Uint16(frame[header+4:]))
	return frame[header+8 : header+length]
}
