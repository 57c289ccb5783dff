// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// both are a forward and a reply packet of one connection, both changed in the same way.
func both(change func(*packet)) func(world) []step {
	return func(w world) []step {
		in, out := webPackets(w)
		change(&in)
		change(&out)
		reply := out.reply("SA", "reply")
		return []step{
			{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
			{hook: toPod, in: reply, verdict: "translate_reply", out: became(reply.from(in.dst))},
			{hook: fromPod, in: in.with("A", "abc"), verdict: "translate_established", out: became(out.with("A", "abc"))},
		}
	}
}

func TestIPv4OptionsStay(t *testing.T) {
	v4 := []world{{protocol: lb.TCP}, {protocol: lb.UDP}}
	option := func(kind uint8, n int) layers.IPv4Option {
		return layers.IPv4Option{OptionType: kind, OptionLength: uint8(n + 2), OptionData: make([]byte, n)}
	}
	rows := []row{}
	for name, options := range map[string][]layers.IPv4Option{
		"router alert":             {option(148, 2)},
		"no-operations":            {{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 1}},
		"record route":             {option(7, 13)},
		"as many as a header has":  {option(7, 37)},
		"timestamp and an end":     {option(68, 9), {OptionType: 0}},
		"options of every length ": {option(130, 9), option(136, 2), {OptionType: 1}},
	} {
		rows = append(rows, row{name: name, worlds: v4, services: web, steps: both(func(p *packet) { p.options = options })})
	}
	runRows(t, rows)
}

func TestIPv6ExtensionHeadersAreSkipped(t *testing.T) {
	v6 := []world{{protocol: lb.TCP, v6: true}, {protocol: lb.UDP, v6: true}}
	pad := func(protocol uint8, words int) extension { // options header of 8 + 8*words bytes, filled with PadN
		body := make([]byte, 7+8*words)
		body[0], body[1], body[2] = byte(words), 1, byte(4+8*words)
		return extension{protocol: protocol, body: body}
	}
	routing := extension{protocol: 43, body: []byte{0, 4, 0, 0, 0, 0, 0}}      // nothing left to visit
	atomic := extension{protocol: 44, body: []byte{0, 0, 0, 0x12, 0x34, 5, 6}} // RFC 6946: a fragment that is the whole packet
	rows := []row{}
	for name, headers := range map[string][]extension{
		"hop-by-hop":               {pad(0, 0)},
		"long hop-by-hop":          {pad(0, 3)},
		"destination options":      {pad(60, 1)},
		"routing":                  {routing},
		"hop-by-hop, destination":  {pad(0, 0), pad(60, 0)},
		"hop-by-hop, dst, routing": {pad(0, 1), pad(60, 0), routing},
		"atomic fragment":          {atomic},
		"hop-by-hop, atomic":       {pad(0, 0), atomic},
	} {
		rows = append(rows, row{name: name, worlds: v6, services: web, steps: both(func(p *packet) { p.headers = headers })})
	}
	runRows(t, rows)
}

func TestIPv6HeadersThatCannotBeSkippedAreNotGuessedAt(t *testing.T) {
	w := world{protocol: lb.TCP, v6: true}
	r := newRig(t, bpf.Options{})
	r.publish(web(w)...)
	for name, headers := range map[string][]extension{
		"encapsulating security payload": {{protocol: 50, body: make([]byte, 15)}},
		"no next header":                 {{protocol: 59, body: make([]byte, 7)}},
		"a hundred headers":              repeat(extension{protocol: 60, body: make([]byte, 7)}, 100),
		"unassigned":                     {{protocol: 200, body: make([]byte, 7)}},
	} {
		in, _ := webPackets(w)
		in.headers = headers
		if got, _ := r.try(fromPod, in.bytes()); class(got.verdict) == bpf.Translate {
			t.Errorf("%s: %s", name, got.verdict)
		}
	}
}

func repeat[T any](value T, n int) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = value
	}
	return all
}

func TestUDPWithoutChecksumKeepsNone(t *testing.T) {
	runRows(t, []row{
		{name: "both directions", worlds: worlds(lb.UDP), services: web, steps: both(func(p *packet) { p.noChecksum = true })},
	})
}

// zeroed is a datagram with two bytes of payload that make its checksum's sum 0.
func zeroed(p packet) packet {
	p.payload = []byte{0, 0, 1, 2}
	binary.BigEndian.PutUint16(p.payload, binary.BigEndian.Uint16(p.transport()[6:]))
	if got := binary.BigEndian.Uint16(p.transport()[6:]); got != 0xffff {
		panic("the row's payload does not sum up to zero")
	}
	return p
}

// A checksum that comes out as zero is sent as ones (RFC 768): zero would say that there is none.
func TestAUDPChecksumOfZeroIsSentAsOnes(t *testing.T) {
	runRows(t, []row{
		{name: "on the way out", worlds: worlds(lb.UDP), services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			out = zeroed(out)
			return []step{{hook: fromPod, in: in.with("", string(out.payload)), verdict: "translate_balance", out: &out}}
		}},
		{name: "on the way in", worlds: worlds(lb.UDP), services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			before := zeroed(in)
			return []step{
				{hook: fromPod, in: before, verdict: "translate_balance", out: became(out.with("", string(before.payload)))},
			}
		}},
		{name: "reply", worlds: worlds(lb.UDP), services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			reply := zeroed(out.reply("", "").from(in.dst))
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: toPod, in: reply.from(out.dst), verdict: "translate_reply", out: &reply},
			}
		}},
	})
}

func TestFramesThatAreNotPlainIPPass(t *testing.T) {
	tagged := func(p packet) packet { p.vlan = true; return p }
	t.Run("with a tag", func(t *testing.T) { // ends first, so that its programs serve the rest
		runRows(t, []row{{name: "VLAN", services: web, doors: framedOnly(), steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				{hook: fromPod, in: tagged(in), verdict: "pass_not_ip"},
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: fromPod, in: tagged(in), verdict: "pass_not_ip"},
				{hook: toPod, in: tagged(out.reply("", "")), verdict: "pass_not_ip"},
			}
		}}})
	})
	r := newRig(t, bpf.Options{})
	frame := make([]byte, 60)
	for _, kind := range []uint16{0x0806, 0x88cc, 0x0001, 0x88a8, 0x8847} {
		binary.BigEndian.PutUint16(frame[12:], kind)
		for _, hook := range []string{fromPod, toPod} {
			if got, _ := r.try(hook, frame); got.verdict != "pass_not_ip" {
				t.Errorf("%s: frame of type %#04x: %s", hook, kind, got.verdict)
			}
		}
	}
}

func TestProtocolsThatNoServiceHasPass(t *testing.T) {
	runRows(t, []row{{name: "GRE", worlds: worlds(lb.Protocol(47)), services: func(w world) []lb.Decision {
		return web(world{v6: w.v6, protocol: lb.TCP, door: w.door})
	}, steps: func(w world) []step {
		return []step{
			{hook: fromPod, in: w.packet(at(w.pod(1), 0), at(w.pod(2), 0)), verdict: "pass_protocol"},
			{hook: toPod, in: w.packet(at(w.pod(2), 0), at(w.pod(1), 0)), verdict: "pass_protocol"},
		}
	}}})
}

func TestSCTPIsTranslatedWhereItsPortStays(t *testing.T) {
	other := func(w world) []lb.Decision {
		return []lb.Decision{w.decide(service{name: "web", address: at(w.vip(10), 80), tiers: tiersOf(w.tier(8080, 2))})}
	}
	chunk := string([]byte{0, 3, 0, 8, 1, 2, 3, 4})
	runRows(t, []row{
		{name: "same port", worlds: worlds(lb.SCTP), services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{
				{hook: fromPod, in: in, verdict: "translate_balance", out: &out},
				{hook: toPod, in: out.reply("", chunk), verdict: "translate_reply", out: became(in.reply("", chunk))},
				{hook: fromPod, in: in.with("", chunk), verdict: "translate_established", out: became(out.with("", chunk))},
			}
		}},
		{name: "made again", worlds: worlds(lb.SCTP), services: web, steps: func(w world) []step {
			in, out := webPackets(w)
			return []step{{hook: fromPod, in: in.with("", chunk), verdict: "translate_recover", out: became(out.with("", chunk))}}
		}},
		{name: "other port", worlds: worlds(lb.SCTP), services: other, steps: func(w world) []step {
			in, _ := webPackets(w)
			return []step{{hook: fromPod, in: in, verdict: "drop_sctp_port"}}
		}},
	})
}

// Bytes that a frame has behind its IP packet stay.
func TestEthernetPaddingStays(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		padding := []byte("padding that a switch put there")
		got, _ := r.try(fromPod, append(in.bytes(), padding...))
		if want := append(out.bytes(), padding...); string(got.frame) != string(want) {
			t.Errorf("%s\nwant:\n%s\ngot:\n%s", got.verdict, show(want), show(got.frame))
		}
	}, lb.TCP, lb.UDP)
}
