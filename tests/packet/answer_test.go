// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// RFC 1122 3.2.2, RFC 4443 2.4 e: what was sent to many, or by nobody that is one host, is not answered. Addresses from 240.0.0.0 on are hosts' to
// Linux, and clusters give them to pods.
func TestOneHostAloneIsAnswered(t *testing.T) {
	const nobody, somebody = false, true
	sources := map[bool]map[string]bool{
		false: {"0.0.0.0": nobody, "0.0.0.9": nobody, "127.0.0.1": nobody, "224.0.0.1": nobody, "239.255.255.255": nobody, "255.255.255.255": nobody,
			"223.255.255.1": somebody, "240.0.0.1": somebody, "250.10.20.30": somebody, "255.255.255.254": somebody},
		true: {"::": nobody, "::1": nobody, "ff02::1": nobody, "ff0e::1:2": nobody, "fe80::1": somebody, "fd00:1::1": somebody},
	}
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP, lb.UDP, lb.SCTP)), func(t *testing.T, r *rig, w world) {
		none := w.decide(service{name: "none", address: at(w.vip(12), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints})
		r.publish(append(web(w), none)...)
		for text, is := range sources[w.v6] {
			source := netip.MustParseAddr(text)
			in := w.packet(at(source, 41000), at(w.vip(12), 80))
			ping := packet{src: at(source, 0), dst: at(w.vip(10), 0), protocol: w.icmp(), icmp: w.echo(true)}
			r.answersOne(in.bytes(), "reject_no_endpoints", is, text)
			r.answersOne(ping.bytes(), "reject_echo", is, "ping from "+text)
		}
		if w.door == networkDoor {
			return // the kernel says of such a frame that it is not for this host
		}
		in := w.packet(at(w.pod(1), 41000), at(w.vip(12), 80)).bytes()
		in[0] |= 1
		r.answersOne(in, "reject_no_endpoints", nobody, "a frame to many")
	})
}

// answersOne wants an answer sent back, or none.
func (r *rig) answersOne(frame []byte, verdict string, answered bool, what string) {
	r.Helper()
	got, _ := r.try(fromPod, frame)
	if got.verdict != verdict {
		r.Errorf("%s: verdict %s, want %s", what, got.verdict, verdict)
	}
	if want := map[bool]action{false: actShot, true: actRedirect}[answered]; got.action != want {
		r.Errorf("%s, %s: action %d, want %d", what, verdict, got.action, want)
	}
}
