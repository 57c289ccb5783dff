// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// failure is one ICMP error in the spelling of both families.
type failure struct {
	name         string
	kind4, code4 uint8
	kind6, code6 uint8
	rest         uint32
}

func failures() []failure {
	return []failure{
		{"port unreachable", 3, 3, 1, 4, 0},
		{"host unreachable", 3, 1, 1, 3, 0},
		{"fragmentation needed, packet too big", 3, 4, 2, 0, 1400},
		{"time exceeded", 11, 0, 3, 0, 0},
		{"parameter problem", 12, 0, 4, 0, 0},
	}
}

// of is the error about p that source sends.
func (f failure) of(p packet, source netip.Addr, n int) packet {
	if p.v6() {
		return p.quote(source, f.kind6, f.code6, f.rest, n)
	}
	return p.quote(source, f.kind4, f.code4, f.rest, n)
}

// quotations are how much of the transport part an error quotes: RFC 792's eight bytes, part of a TCP header, all.
func quotations() []int { return []int{8, 12, 0} }

// change are ways to make the quoted packet of other headers.
func changes(w world) map[string]func(packet) packet {
	all := map[string]func(packet) packet{
		"plain": func(p packet) packet { return p },
		"empty": func(p packet) packet { p.payload = nil; return p },
	}
	if w.protocol == lb.UDP {
		all["without checksum"] = func(p packet) packet { p.noChecksum = true; return p }
	}
	if w.v6 {
		all["extension header"] = func(p packet) packet {
			p.headers = []extension{{protocol: 60, body: []byte{0, 1, 4, 0, 0, 0, 0}}}
			return p
		}
	} else {
		all["options"] = func(p packet) packet {
			p.options = []layers.IPv4Option{{OptionType: 148, OptionLength: 4, OptionData: []byte{0, 0}}}
			return p
		}
	}
	return all
}

// An error about a packet on its way to the backend reaches the client as one about what the client sent.
func TestErrorsAboutForwardedPacketsReachTheClient(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		for name, change := range changes(w) {
			in, out := change(in.with("A", "what the error is about")), change(out.with("A", "what the error is about"))
			for _, f := range failures() {
				for _, n := range quotations() {
					for _, source := range []netip.Addr{w.router(), out.dst.Addr()} {
						r.compareError(name+" "+f.name, toPod, f.of(out, source, n), []packet{f.of(in, source, n), f.of(in, in.dst.Addr(), n)})
					}
				}
			}
		}
		// An error of the backend itself comes, for the client, from the service.
		got, _ := r.try(toPod, failures()[0].of(out, out.dst.Addr(), 8).bytes())
		if src, _ := addresses(t, got.frame); src != in.dst.Addr() {
			t.Errorf("port unreachable of the backend comes from %s, want %s", src, in.dst.Addr())
		}
	}, lb.TCP, lb.UDP)
}

// An error that the client sends about a reply reaches the backend as one about what the backend sent.
func TestErrorsAboutRepliesReachTheBackend(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		for name, change := range changes(w) {
			sent := change(out.reply("PA", "what the error is about"))
			seen := sent.from(in.dst)
			for _, f := range failures() {
				for _, n := range quotations() {
					e, want := f.of(seen, in.src.Addr(), n), f.of(sent, in.src.Addr(), n)
					r.compareError(name+" "+f.name, fromPod, e, []packet{want})
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

func (r *rig) compareError(name, hook string, e packet, allowed []packet) {
	r.Helper()
	got, _ := r.try(hook, e.bytes())
	if got.verdict != "translate_icmp" {
		r.Errorf("%s, %s, %d bytes quoted: verdict %s\n%s", name, hook, len(e.icmp.body), got.verdict, show(e.bytes()))
		return
	}
	for _, want := range allowed {
		if bytes.Equal(want.bytes(), got.frame) {
			return
		}
	}
	r.Errorf("%s, %s, %d bytes quoted:\nwant:\n%s\n%x\ngot:\n%s\n%x", name, hook, len(e.icmp.body), show(allowed[0].bytes()), allowed[0].bytes(), show(got.frame), got.frame)
}

func addresses(t *testing.T, frame []byte) (src, dst netip.Addr) {
	t.Helper()
	p, ok := parse(frame)
	if !ok {
		t.Fatalf("read addresses: frame is broken\n%s", show(frame))
	}
	src, _ = netip.AddrFromSlice(p.src)
	dst, _ = netip.AddrFromSlice(p.dst)
	return src, dst
}

// A quoted UDP checksum that comes out as zero is that of ones: zero would say that its sender made none.
func TestAQuotedChecksumOfZeroIsThatOfOnes(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		sent := zeroed(in)
		sentBack := zeroed(out.reply("", ""))
		for _, f := range failures() {
			r.compareError("forward "+f.name, toPod, f.of(out.with("", string(sent.payload)), w.router(), 0), []packet{f.of(sent, w.router(), 0)})
			r.compareError("reply "+f.name, fromPod, f.of(sentBack.from(in.dst), in.src.Addr(), 0), []packet{f.of(sentBack, in.src.Addr(), 0)})
		}
	}, lb.UDP)
}

// Errors find the flow of a source port that a clash changed, too.
func TestErrorsOfAClashingFlowKeepApart(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(twins(w)...)
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		talks := []talk{r.start(in), r.start(in.to(at(w.vip(11), 80)))}
		for _, c := range talks {
			f := failures()[2]
			for _, n := range quotations() {
				r.compareError("forward", toPod, f.of(c.out, w.router(), n), []packet{f.of(c.in, w.router(), n), f.of(c.in, c.in.dst.Addr(), n)})
				sent := c.out.reply("PA", "data")
				seen := sent.from(c.in.dst).to(c.in.src)
				r.compareError("reply", fromPod, f.of(seen, in.src.Addr(), n), []packet{f.of(sent, in.src.Addr(), n)})
			}
		}
	}, lb.TCP, lb.UDP)
}

func TestErrorsThatQuoteNothingOfOursPass(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		for _, f := range failures() {
			for name, p := range map[string]packet{
				"another client port":  out.from(at(w.pod(1), 41001)),
				"another backend port": out.to(at(w.pod(2), 8081)),
				"another host":         out.to(at(w.outside(1), 8080)),
			} {
				if got, _ := r.try(toPod, f.of(p, w.router(), 8).bytes()); class(got.verdict) != bpf.Pass {
					t.Errorf("to_pod, %s, %s: %s", f.name, name, got.verdict)
				}
			}
			direct := out.reply("A", "x")
			direct.src = at(w.outside(1), 80)
			if got, _ := r.try(fromPod, f.of(direct, in.src.Addr(), 8).bytes()); class(got.verdict) != bpf.Pass {
				t.Errorf("from_pod, %s: %s", f.name, got.verdict)
			}
		}
	}, lb.TCP, lb.UDP)
}

// An error about a later fragment has no ports to find a flow by; one that is cut short of them neither.
func TestErrorsWithoutPortsAreNotGuessedAt(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		later := long(out).cut(5, 600, 1200)
		for _, f := range failures() {
			e := f.of(later, w.router(), 0)
			if got, _ := r.try(toPod, e.bytes()); class(got.verdict) == bpf.Translate {
				t.Errorf("%s about a later fragment: %s", f.name, got.verdict)
			}
			whole := f.of(out, w.router(), 8)
			for n := range len(whole.icmp.body) - 3 {
				short := whole
				m := *whole.icmp
				m.body = m.body[:n]
				short.icmp = &m
				if got, ok := r.try(toPod, short.bytes()); ok && n < len(whole.icmp.body)-4 && class(got.verdict) == bpf.Translate {
					t.Errorf("%s, %d bytes quoted: %s", f.name, n, got.verdict)
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

// A neighbour's or router's own messages have no packet to quote.
func TestOtherICMPPasses(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		kinds := []uint8{0, 5, 9, 10, 13, 14, 17, 40, 200}
		if w.v6 {
			kinds = []uint8{129, 130, 133, 134, 135, 136, 137, 143, 200}
		}
		for _, kind := range kinds {
			body := binary.BigEndian.AppendUint32(nil, 7)
			m := packet{src: at(w.pod(1), 0), dst: at(w.outside(1), 0), protocol: w.icmp(), icmp: &icmp{kind: kind, body: append(body, make([]byte, 60)...)}}
			r.expectPass(fromPod, m)
			m.src, m.dst = m.dst, m.src
			r.expectPass(toPod, m)
		}
	}, lb.TCP)
}

// Bytes behind the end that the IP header gives are padding, even where they look like the rest of a quotation.
func TestAQuotationEndsWithItsPacket(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		whole := failures()[2].of(out, w.router(), 8)
		for n := 8; n < len(whole.transport()); n++ {
			short := whole
			m := *whole.icmp
			m.body = m.body[:n-8]
			short.icmp = &m
			frame := append(short.bytes(), whole.icmp.body[n-8:]...)
			if got, _ := r.try(toPod, frame); n < len(whole.transport())-4 && class(got.verdict) == bpf.Translate {
				t.Errorf("%d bytes of %d are the packet's: %s", n, len(whole.transport()), got.verdict)
			}
		}
	}, lb.TCP, lb.UDP)
}
