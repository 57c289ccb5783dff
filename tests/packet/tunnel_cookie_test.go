// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// Cookies of three keys.
const (
	oldCookie   = 0x0102030405060708
	newCookie   = 0xf1f2f3f4f5f6f7f8
	otherCookie = 0xa1a2a3a4a5a6a7a8
)

// keyed are nodes that share one key, or two: their packets have the first one's cookie, or none where that is 0.
func keyed(first, last uint64) maps.Tunnel {
	t := tunnelNodes()
	t.Cookies = maps.Cookies{Asked: true, Sent: first, Accepted: [2]uint64{min(first, last), max(first, last)}}
	return t
}

// Every packet between nodes that share a key has its cookie, and TCP is told of its room.
func TestPacketsBetweenNodesHaveTheirCookie(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.tell(keyed(newCookie, newCookie))
		w.cookie = newCookie
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		for range 2 {
			s.goesOnThrough(w, c)
		}
		s.serveOn(s.site, w, func(o *service) { o.address = at(w.outside(12), 80) }, 3)
		in := w.packet(at(w.outside(1), 41001), at(w.outside(12), 80))
		there := s.enters(fromPod, in.bytes(), w.forward(routed(in), at(w.pod(3), 8080)), "translate_balance")
		s.other.enters(fromPod, there, s.unknown(w, in), "translate_returned")
	}, lb.TCP, lb.UDP)
}

// cookieRows are datagrams to a node that asks for newCookie, and why each is dropped. at: where options begin.
func cookieRows(first datagram, options int) map[string]struct {
	frame   []byte
	verdict string
} {
	with := func(change func(*datagram)) []byte {
		d := first
		change(&d)
		return d.frame()
	}
	whole := first.frame()
	written := func(at int, to ...byte) []byte {
		frame := slices.Clone(whole)
		copy(frame[options+at:], to)
		return frame
	}
	type row = struct {
		frame   []byte
		verdict string
	}
	return map[string]row{
		"without one":                   {with(func(d *datagram) { d.cookie = 0 }), "drop_tunnel_cookie"},
		"with another one":              {with(func(d *datagram) { d.cookie = otherCookie }), "drop_tunnel_cookie"},
		"with the one before":           {with(func(d *datagram) { d.cookie = oldCookie }), "drop_tunnel_cookie"},
		"an answer without one":         {with(func(d *datagram) { d.kind, d.cookie, d.option = kindReply, 0, first.option }), "drop_tunnel_cookie"},
		"of another class":              {written(0, 0xff, 0x02), "drop_tunnel_cookie"},
		"of another type":               {written(2, 0x83), "drop_tunnel_cookie"},
		"that is longer":                {written(3, 3), "drop_tunnel_malformed"},
		"that is zero":                  {written(4, 0, 0, 0, 0, 0, 0, 0, 0), "drop_tunnel_malformed"},
		"twice":                         {written(12, cookieOption(newCookie)...), "drop_tunnel_malformed"},
		"a header of one word":          {written(-8, 1), "drop_tunnel_cookie"},
		"a header of the cookie alone":  {written(-8, 3), "drop_tunnel_malformed"},
		"more options than bytes":       {written(-8, 63), "drop_tunnel_malformed"},
		"options that are not critical": {written(-7, 0), "drop_tunnel_malformed"},
	}
}

// Whoever sends as a node, and does not know the key, opens nothing; each is dropped by name, and makes no flow.
func TestNobodyIsANodeWithoutTheCookie(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.tell(keyed(newCookie, newCookie))
		w.cookie = newCookie
		s.serve(w, nil, 2)
		in, server := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080)
		first := w.forward(in.bytes(), server)
		first.from = at(w.node1(), 0x9000)
		options := 14 + map[bool]int{false: 20, true: 40}[w.v6] + 16
		for what, row := range cookieRows(first, options) {
			if s.other.refuses(fromPod, row.frame, row.verdict); s.Failed() {
				s.Errorf("datagram with a cookie %s", what)
				return
			}
		}
		for at := range cookieOption(newCookie) {
			frame := first.frame()
			frame[options+at] ^= 0x10
			if got, err := s.other.run(fromPod, frame); err != nil || got.action != actShot {
				s.Errorf("byte %d of the cookie changed: %s, %v", at, got.verdict, err)
			}
		}
		if flows := s.other.liveFlows(); len(flows) > 0 {
			s.Errorf("%d flows", len(flows))
		}
		s.other.goes(fromPod, first.frame(), w.clamped(in.to(server), false).bytes(), "translate_balance", actUnspec)
	}, lb.TCP, lb.UDP)
}

// A key comes, changes and goes in steps, which the nodes take one after the other, either first: a connection goes on through all of them, and
// what comes from the step before is taken.
func TestTheKeyChangesWithoutALoss(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		sends := func(first, second maps.Tunnel) {
			s.tellApart(first, second)
			one, other := w, w
			one.cookie, other.cookie = first.Cookies.Sent, second.Cookies.Sent
			in := c.in.with("A", "go")
			there := s.enters(fromPod, in.bytes(), one.forward(routed(in), c.out.dst), "translate_established")
			s.other.goes(fromPod, there, routed(c.out.with("A", "go")), "translate_established", actUnspec)
			s.answersBack(other, c, "PA", "yes")
		}
		steps := []maps.Tunnel{tunnelNodes(), keyed(0, oldCookie), keyed(oldCookie, 0), keyed(oldCookie, oldCookie), keyed(oldCookie, newCookie),
			keyed(newCookie, oldCookie), keyed(newCookie, newCookie), keyed(newCookie, 0), keyed(0, newCookie), tunnelNodes()}
		for i, next := range steps[1:] {
			before := steps[i]
			for _, pair := range [][2]maps.Tunnel{{next, before}, {before, next}, {next, next}} {
				if sends(pair[0], pair[1]); s.Failed() {
					s.Errorf("at step %d: n1 has %+v, n2 %+v", i+1, pair[0].Cookies, pair[1].Cookies)
					return
				}
			}
		}
	}, lb.TCP, lb.UDP)
}

// A hello has the cookie of who asks, and its answer that of who answers, or zeros in its place. Who asks without the option is answered by nodes
// whose packets have no cookie.
func TestAHelloAndItsAnswerHaveEachNodesCookie(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		mark := []byte{1, 2, 3, 4, 5, 6, 7, 8}
		plain := []byte{0, 0x80, 0, 0, 0, 0, 3, 0}
		asking := func(cookie uint64) []byte {
			return slices.Concat([]byte{3, 0xc0, 0, 0, 0, 0, 3, 0}, cookieOption(cookie), mark)
		}
		none := slices.Concat(plain, mark)
		rows := []struct {
			node    maps.Tunnel
			hello   []byte
			verdict string
			answer  uint64
		}{
			{keyed(newCookie, newCookie), asking(newCookie), "reject_hello", newCookie},
			{keyed(newCookie, oldCookie), asking(oldCookie), "reject_hello", newCookie},
			{keyed(newCookie, 0), asking(0), "reject_hello", newCookie},
			{keyed(0, newCookie), asking(newCookie), "reject_hello", 0},
			{tunnelNodes(), asking(newCookie), "reject_hello", 0},
			{keyed(0, newCookie), none, "reject_hello", 0},
			{tunnelNodes(), none, "reject_hello", 0},
			{keyed(newCookie, 0), none, "drop_tunnel_cookie", 0}, // it might not know cookies
			{keyed(newCookie, newCookie), none, "drop_tunnel_cookie", 0},
			{keyed(newCookie, newCookie), asking(0), "drop_tunnel_cookie", 0},
			{keyed(newCookie, newCookie), asking(oldCookie), "drop_tunnel_cookie", 0},
		}
		for i, row := range rows {
			s.tell(row.node)
			hello := world{v6: w.v6, protocol: lb.UDP}.packet(at(w.node1(), 40000), at(w.node2(), tunnelPort))
			answer := hello.back().from(hello.dst).to(hello.src)
			for _, unsummed := range []bool{false, true} {
				hello.payload, hello.noChecksum, answer.noChecksum = row.hello, unsummed, unsummed
				if row.verdict == "reject_hello" {
					answer.payload = slices.Clone(row.hello)
					answer.payload[6], answer.payload[7] = 4, 1
					if !bytes.Equal(row.hello, none) {
						binary.LittleEndian.PutUint64(answer.payload[12:], row.answer)
					}
					s.other.goes(fromPod, hello.bytes(), answer.bytes(), row.verdict, actRedirect)
				} else {
					s.other.refuses(fromPod, hello.bytes(), row.verdict)
				}
			}
			if s.Failed() {
				s.Errorf("row %d", i)
				return
			}
		}
		s.tell(keyed(newCookie, newCookie))
		for i := range 12 {
			wrong := world{v6: w.v6, protocol: lb.UDP}.packet(at(w.node1(), 40000), at(w.node2(), tunnelPort))
			wrong.payload = asking(newCookie)
			wrong.payload[i] ^= 1
			if got, err := s.other.run(fromPod, wrong.bytes()); err != nil || got.action != actShot {
				s.Errorf("byte %d of a hello changed: %s, %v", i, got.verdict, err)
			}
		}
	}, lb.UDP)
}
