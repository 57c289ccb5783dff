// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// padding is a destination options header of n bytes, a multiple of 8, filled with one PadN.
func padding(n int) extension {
	body := make([]byte, n-1)
	body[0], body[1], body[2] = byte(n/8-1), 1, byte(n-4)
	return extension{protocol: 60, body: body}
}

// The programs reach a few hundred bytes into a packet. Around the end of their reach a packet is translated rightly or not at all.
func TestExtensionHeadersOfEveryLength(t *testing.T) {
	atomic := extension{protocol: 44, body: []byte{0, 0, 0, 0x12, 0x34, 5, 6}}
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		if !w.v6 {
			return
		}
		r.publish(web(w)...)
		for n := 8; n <= 512; n += 8 {
			chain := []extension{padding(n)}
			if n > 256 {
				chain = []extension{padding(256), padding(n - 256)}
			}
			for _, headers := range [][]extension{chain, append(chain, atomic)} {
				r.evict()
				in, out := webPackets(w)
				in.headers, out.headers = headers, headers
				got, _ := r.try(fromPod, in.bytes())
				want := in.bytes()
				if class(got.verdict) == bpf.Translate {
					want = out.bytes()
				} else if n <= 400 {
					t.Errorf("%d bytes of headers: %s", n, got.verdict)
				}
				if string(got.frame) != string(want) {
					t.Errorf("%d bytes of headers: %s\nwant:\n%s\ngot:\n%s", n, got.verdict, show(want), show(got.frame))
				}
			}
		}
	}, lb.TCP, lb.UDP, lb.SCTP)
}
