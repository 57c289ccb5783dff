// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// checkOutcome holds what is true of every packet, made or malformed: what each class of verdict may do with a frame.
func checkOutcome(in []byte, o outcome) error {
	switch class(o.verdict) {
	case bpf.Pass:
		if o.action != actOK && o.action != actUnspec {
			return fmt.Errorf("%s: action %d", o.verdict, o.action)
		}
		if !bytes.Equal(in, o.frame) {
			return fmt.Errorf("%s: the frame changed", o.verdict)
		}
	case bpf.Drop:
		if o.action != actShot {
			return fmt.Errorf("%s: action %d", o.verdict, o.action)
		}
	case bpf.Translate:
		return checkTranslation(in, o)
	case bpf.Reject:
		return checkAnswer(in, o)
	default:
		return fmt.Errorf("verdict %q has no class", o.verdict)
	}
	return nil
}

func class(verdict string) bpf.Class {
	for _, v := range bpf.Verdicts() {
		if v.Name == verdict {
			return v.Class
		}
	}
	return ""
}

// checkTranslation: only addresses, ports and checksums changed, and each checksum is as right or wrong as it was.
func checkTranslation(in []byte, o outcome) error {
	p, ok := parse(in)
	if !ok {
		return fmt.Errorf("%s: the frame's headers do not hold together", o.verdict)
	}
	if err := checkWay(in, o); err != nil {
		return err
	}
	if len(in) != len(o.frame) {
		return fmt.Errorf("%s: %d bytes became %d", o.verdict, len(in), len(o.frame))
	}
	after, ok := parse(o.frame)
	if !ok {
		return fmt.Errorf("%s: broken headers", o.verdict)
	}
	masked, want := bytes.Clone(o.frame), bytes.Clone(in)
	copy(want[:12], masked[:12])
	for _, span := range p.rewritten() {
		copy(want[span.from:span.to], masked[span.from:span.to])
	}
	if !bytes.Equal(masked, want) {
		return fmt.Errorf("%s: more than addresses, ports and checksums changed", o.verdict)
	}
	return sameResidues(o.verdict, p, after, in[14:], o.frame[14:])
}

// checkWay: a translated packet goes on as it came, or back to its device with the MAC addresses changed over.
func checkWay(in []byte, o outcome) error {
	same := bytes.Equal(in[:12], o.frame[:12])
	back := bytes.Equal(in[:6], o.frame[6:12]) && bytes.Equal(in[6:12], o.frame[:6])
	switch {
	case (o.action == actOK || o.action == actUnspec) && same:
	case o.action == actRedirect && back:
	default:
		return fmt.Errorf("%s: action %d, MAC addresses the same: %v, changed over: %v", o.verdict, o.action, same, back)
	}
	return nil
}

// span is a part of a frame.
type span struct{ from, to int }

func (s span) shift(n int) span { return span{s.from + n, s.to + n} }

// rewritten are the parts of a frame that a translation may write.
func (p parsed) rewritten() []span {
	spans := p.rewrittenIP(14)
	if !p.first {
		return spans
	}
	at := 14 + p.header
	spans = append(spans, p.rewrittenTransport(at)...)
	isICMP := p.protocol == protocolICMP || p.protocol == protocolICMPv6
	if !isICMP || len(p.transport) < 8+20 {
		return spans
	}
	spans = append(spans, span{at + 2, at + 4})
	quoted, ok := parseQuoted(p.transport[8:])
	if !ok {
		return spans
	}
	for _, s := range append(quoted.rewrittenIP(0), quoted.rewrittenTransport(quoted.header)...) {
		spans = append(spans, s.shift(at+8))
	}
	return spans
}

func (p parsed) rewrittenIP(at int) []span {
	if p.v6 {
		return []span{{at + 8, at + 40}}
	}
	return []span{{at + 10, at + 20}}
}

// rewrittenTransport are ports and checksum, as far as the transport part goes.
func (p parsed) rewrittenTransport(at int) []span {
	checksum := map[lb.Protocol]int{lb.TCP: 16, lb.UDP: 6}[p.protocol]
	if checksum == 0 && p.protocol != lb.SCTP {
		return nil
	}
	spans := []span{}
	if len(p.transport) >= 4 {
		spans = append(spans, span{at, at + 4})
	}
	if checksum != 0 && len(p.transport) >= checksum+2 {
		spans = append(spans, span{at + checksum, at + checksum + 2})
	}
	return spans
}

// parseQuoted reads a quoted packet's headers; the quotation may end before the packet does, and nobody minds the length that
// it claims.
func parseQuoted(quoted []byte) (parsed, bool) {
	whole := bytes.Clone(quoted)
	if whole[0]>>4 == 6 && len(whole) >= 40 {
		binary.BigEndian.PutUint16(whole[4:], uint16(len(whole)-40))
		return parseIPv6(whole)
	}
	binary.BigEndian.PutUint16(whole[2:], uint16(len(whole)))
	return parseIPv4(whole)
}

// sameResidues compares how far each checksum is off before and after: an incremental update keeps that, and a right
// checksum stays right. A UDP datagram without a checksum keeps none.
func sameResidues(verdict string, before, after parsed, ipBefore, ipAfter []byte) error {
	if !before.v6 && !same(sum(0, ipBefore[:before.header]), sum(0, ipAfter[:after.header])) {
		return fmt.Errorf("%s: IPv4 header checksum", verdict)
	}
	if !before.first {
		return nil
	}
	a, b := before.transport, after.transport
	switch {
	case before.protocol == lb.UDP && len(a) >= 8 && a[6] == 0 && a[7] == 0:
		if b[6] != 0 || b[7] != 0 {
			return fmt.Errorf("%s: a UDP datagram without a checksum got one", verdict)
		}
	case before.protocol == lb.UDP && len(b) >= 8 && b[6] == 0 && b[7] == 0:
		return fmt.Errorf("%s: a UDP datagram lost its checksum", verdict)
	case before.protocol == lb.TCP, before.protocol == lb.UDP, before.protocol == protocolICMPv6:
		if !same(sum(before.pseudo(), a), sum(after.pseudo(), b)) {
			return fmt.Errorf("%s: %s checksum", verdict, before.protocol)
		}
	case before.protocol == protocolICMP:
		if !same(sum(0, a), sum(0, b)) {
			return fmt.Errorf("%s: ICMP checksum", verdict)
		}
	case before.protocol == lb.SCTP && len(a) >= 4:
		if !bytes.Equal(a[:4], b[:4]) {
			return fmt.Errorf("%s: SCTP ports changed, its checksum covers them", verdict)
		}
	}
	return nil
}

// same compares one's complement sums: 0 and 0xffff are one number.
func same(a, b uint32) bool { return a%0xffff == b%0xffff }

// checkAnswer: a reject goes back to the sender from the address it asked for, whole and with right checksums.
func checkAnswer(in []byte, o outcome) error {
	question, ok := parse(in)
	if !ok {
		return fmt.Errorf("%s: answers a frame whose headers do not hold together", o.verdict)
	}
	if o.action == actShot {
		return nil // nothing is said to a RST or an ICMP error
	}
	if o.action != actRedirect {
		return fmt.Errorf("%s: action %d", o.verdict, o.action)
	}
	if !bytes.Equal(in[:6], o.frame[6:12]) || !bytes.Equal(in[6:12], o.frame[:6]) {
		return fmt.Errorf("%s: MAC addresses did not change places", o.verdict)
	}
	answer, ok := parse(o.frame)
	if !ok {
		return fmt.Errorf("%s: broken headers", o.verdict)
	}
	if !bytes.Equal(answer.dst, question.src) || !bytes.Equal(answer.src, question.dst) {
		return fmt.Errorf("%s: answer from %x to %x", o.verdict, answer.src, answer.dst)
	}
	if end := 14 + answer.header + len(answer.transport); end != len(o.frame) {
		return fmt.Errorf("%s: %d bytes behind the packet's end", o.verdict, len(o.frame)-end)
	}
	if checkChecksums(in) != nil {
		return nil // the question was wrong: so may be what quotes it
	}
	if err := checkChecksums(o.frame); err != nil {
		return fmt.Errorf("%s: %w", o.verdict, err)
	}
	return nil
}
