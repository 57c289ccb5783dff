// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"net/netip"
	"testing"
	"time"

	wire "github.com/miekg/dns"
)

// saying is an upstream that says one thing.
type saying struct{ reply *wire.Msg }

func (s saying) Exchange(context.Context, *wire.Msg) (*wire.Msg, error) { return s.reply, nil }

// FuzzUpstream holds that nothing that an upstream says, however odd, ends the responder: what is told the first time, and the second
// time from the cache, is a message, and the cache keeps its bound.
func FuzzUpstream(f *testing.F) {
	ask := new(wire.Msg).SetQuestion("www.example.com.", wire.TypeA)
	for _, lines := range [][]string{{}, {"@ 60 IN A 192.0.2.1"}, {"@ 60 IN CNAME a.example.com.", "a.example.com. 0 IN A 192.0.2.1"}, {"@ 60 IN SOA ns. host. 1 2 3 4 5"}} {
		m := new(wire.Msg).SetReply(ask)
		m.Answer, m.Ns = parsed(ask, lines), parsed(ask, lines)
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		reply := new(wire.Msg)
		if reply.Unpack(data) != nil {
			return
		}
		forwarder := NewForwarder(saying{reply})
		for range 2 {
			m, way, err := forwarder.Exchange(t.Context(), ask, netip.Addr{}, true)
			if err != nil {
				t.Fatalf("%s: %v", way, err)
			}
			if _, err := m.Pack(); err != nil && way != WayForwarded { // else the server says SERVFAIL
				t.Errorf("pack %v: %v", m, err)
			}
			if m.Id != ask.Id || m.Question[0] != ask.Question[0] {
				t.Errorf("the answer is to another question: %v", m)
			}
		}
		if life := lifeOf(keyOf(ask), reply); life < 0 || life > time.Hour {
			t.Errorf("life %v", life)
		}
		if _, bytes := forwarder.Kept(); bytes > cacheBytes {
			t.Errorf("%d bytes", bytes)
		}
	})
}
