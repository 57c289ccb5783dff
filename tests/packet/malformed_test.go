// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// samples are packets of every shape that the rows have, with the hook they go through, around one connection to web.
func samples(w world) map[string][]packet {
	in, out := webPackets(w)
	in, out = in.with("PA", "some data of odd length"), out.with("PA", "some data of odd length")
	reply := out.reply("PA", "and an answer")
	forward := []packet{in, in.with("S", ""), in.to(at(w.vip(10), 81)), in.to(at(w.vip(11), 80)), in.to(at(w.pod(2), 8080)), in.to(at(w.outside(1), 80))}
	backward := []packet{reply, out, reply.from(at(w.outside(1), 80))}
	for _, change := range changes(w) {
		forward, backward = append(forward, change(in)), append(backward, change(reply))
	}
	for _, p := range []*[]packet{&forward, &backward} {
		first := (*p)[0]
		parts := pieces(long(first), 9)
		tagged := first
		tagged.vlan = true
		*p = append(*p, tagged, parts[0], parts[1])
	}
	forward = append(forward, packet{src: at(w.pod(1), 0), dst: at(w.vip(10), 0), protocol: w.icmp(), icmp: w.echo(true)})
	for _, f := range failures()[:3] {
		forward = append(forward, f.of(reply.from(in.dst), in.src.Addr(), 0), f.of(reply.from(in.dst), in.src.Addr(), 8))
		backward = append(backward, f.of(out, w.router(), 0), f.of(out, w.router(), 8))
	}
	return map[string][]packet{fromPod: forward, toPod: backward}
}

// cuts is how many worlds share the lengths at which packets are cut: 1 has each world cut at every byte.
var cuts = flag.Int("cuts", 3, "`worlds` that share the lengths at which packets are cut")

// Every sample cut at every byte in one of a few worlds, with the lengths in its headers as they were and mended, with a flow and without one:
// counted once, nothing translated whose headers do not fit, no checksum made worse. try checks all that.
func TestPacketsCutAtEveryByte(t *testing.T) {
	forEachOf(t, bpf.Options{}, framedWorlds(), func(t *testing.T, r *rig, w world) {
		begin := 14 + slices.Index(framedWorlds(), w)%*cuts
		r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
		for _, p := range samples(w)[fromPod] {
			for n := begin; n <= min(200, len(p.bytes())); n += *cuts {
				r.cut(fromPod, p.bytes(), n)
			}
		}
		r.publish(web(w)...)
		in, _ := webPackets(w)
		for hook, all := range samples(w) {
			for _, p := range all {
				whole := p.bytes()
				for n := begin; n < len(whole); n += *cuts {
					if n > 200 && n < len(whole)-4 {
						continue // data of a large packet
					}
					r.evict()
					r.cut(hook, whole, n)
					r.evict()
					r.pick(in)
					r.cut(hook, whole, n)
				}
				if t.Failed() {
					return
				}
			}
		}
	})
}

// framedWorlds leaves out those whose frames the rig fills up.
func framedWorlds() []world {
	return append(worlds(lb.TCP, lb.UDP, lb.SCTP), through([]door{networkDoor}, worlds(lb.TCP, lb.UDP))...)
}

// cut runs the first n bytes of a frame, as they are and with mended lengths.
func (r *rig) cut(hook string, whole []byte, n int) {
	r.Helper()
	short := append([]byte{}, whole[:n]...)
	if got, ok := r.try(hook, short); ok && n < len(whole) && class(got.verdict) == bpf.Translate {
		r.Errorf("%s, %d of %d bytes: %s\n%s", hook, n, len(whole), got.verdict, show(short))
	}
	if mended := mendLength(short); mended != nil {
		r.try(hook, mended)
	}
}

// mendLength writes a frame's length into its IP header; nil where it has none or less than a header.
func mendLength(frame []byte) []byte {
	f := append([]byte{}, frame...)
	switch {
	case len(f) >= 34 && binary.BigEndian.Uint16(f[12:]) == 0x0800 && len(f) >= 14+int(f[14]&15)*4:
		binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))
		f[24], f[25] = 0, 0
		binary.BigEndian.PutUint16(f[24:], ^uint16(sum(0, f[14:14+int(f[14]&15)*4])))
	case len(f) >= 54 && binary.BigEndian.Uint16(f[12:]) == 0x86dd:
		binary.BigEndian.PutUint16(f[18:], uint16(len(f)-54))
	default:
		return nil
	}
	return f
}

func TestHeadersThatContradictEachOther(t *testing.T) {
	tcp4, tcp6, udp4, udp6 := world{protocol: lb.TCP}, world{protocol: lb.TCP, v6: true}, world{protocol: lb.UDP}, world{protocol: lb.UDP, v6: true}
	rows := []struct {
		name  string
		w     world
		spoil func([]byte)
	}{
		{"version 5 in an IPv4 frame", tcp4, func(ip []byte) { ip[0] = 0x55 }},
		{"version 4 in an IPv6 frame", tcp6, func(ip []byte) { ip[0] = 0x45 }},
		{"header length of 4 words", tcp4, func(ip []byte) { ip[0] = 0x44 }},
		{"header length of none", tcp4, func(ip []byte) { ip[0] = 0x40 }},
		{"header longer than the packet", tcp4, func(ip []byte) { ip[0] = 0x4f }},
		{"total length of none", tcp4, func(ip []byte) { ip[2], ip[3] = 0, 0 }},
		{"total length shorter than the header", tcp4, func(ip []byte) { ip[2], ip[3] = 0, 19 }},
		{"total length beyond the frame", tcp4, func(ip []byte) { ip[3]++ }},
		{"payload length beyond the frame", tcp6, func(ip []byte) { ip[5]++ }},
		{"payload too short for TCP", tcp6, func(ip []byte) { ip[5] = 19 }},
		{"total length too short for TCP", tcp4, func(ip []byte) { ip[3] = 20 + 19 }},
		{"payload too short for UDP", udp6, func(ip []byte) { ip[5] = 7 }},
		{"total length too short for UDP", udp4, func(ip []byte) { ip[3] = 20 + 7 }},
		{"UDP length beyond the packet", udp4, func(ip []byte) { ip[20+5]++ }},
		{"UDP length shorter than its header", udp4, func(ip []byte) { ip[20+5] = 7 }},
		{"TCP header of 4 words", tcp4, func(ip []byte) { ip[20+12] = 0x40 }},
		{"TCP header beyond the packet", tcp6, func(ip []byte) { ip[40+12] = 0xf0 }},
	}
	r := newRig(t, bpf.Options{})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, established := range []bool{false, true} {
				r := r.in(t)
				r.publish(web(row.w)...)
				in, _ := webPackets(row.w)
				if established {
					r.pick(in)
				}
				frame := in.bytes()
				row.spoil(frame[14:])
				got, ok := r.try(fromPod, frame)
				if !ok {
					continue
				}
				if c := class(got.verdict); row.name[:3] != "UDP" && row.name[:3] != "TCP" && c == bpf.Translate {
					t.Errorf("%s (flow known: %v)", got.verdict, established)
				}
			}
		})
	}
}

func TestADisabledDatapathPassesEverything(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		in, out := webPackets(w)
		r.pick(in)
		r.disable(1)
		for hook, all := range samples(w) {
			for _, p := range all {
				if got, _ := r.try(hook, p.bytes()); got.verdict != "pass_disabled" && got.verdict != "pass_not_ip" {
					t.Errorf("%s %s to %s: %s", hook, p.src, p.dst, got.verdict)
				}
			}
		}
		r.disable(0)
		step{hook: fromPod, in: in, verdict: "translate_established", out: &out}.play(r, 1)
	}, lb.TCP, lb.UDP)
}

func (r *rig) disable(value uint8) {
	r.Helper()
	var s bpf.NearlbSettings
	check(r, r.objects.Config.Lookup(uint32(0), &s))
	s.Disabled = value
	check(r, r.objects.Config.Put(uint32(0), &s))
}

// Samples with bytes changed here and there, with a flow and without one. FuzzPacket goes on from here.
func TestPacketsWithChangedBytes(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		none := w.decide(service{name: "none", address: at(w.vip(12), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints})
		self := w.decide(service{name: "self", address: at(w.vip(13), 80), tiers: tiersOf(w.tier(w.target(), 1))})
		r.publish(append(web(w), none, self)...)
		in, _ := webPackets(w)
		random := rand.New(rand.NewPCG(1, uint64(w.protocol)))
		all := samples(w)
		all[fromPod] = append(all[fromPod], in.to(at(w.vip(12), 80)), in.to(at(w.vip(13), 80)))
		for round := range 30 {
			r.evict()
			if round%2 == 0 {
				r.pick(in)
			}
			for hook, packets := range all {
				for _, p := range packets {
					frame := p.bytes()
					for range 1 + random.IntN(4) {
						frame[14+random.IntN(min(106, len(frame)-14))] = byte(random.Uint32())
					}
					r.try(hook, frame)
				}
			}
			if t.Failed() {
				return
			}
		}
	}, lb.TCP, lb.UDP, lb.SCTP)
}
