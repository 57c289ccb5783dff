// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/dns"
)

// serve runs a server on a free port of a loopback address until the test ends.
func serve(t *testing.T, r *dns.Responder, address string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	at, ended := make(chan string, 1), make(chan error, 1)
	s := &dns.Server{Responder: r, Address: address, Ready: func(a string) { at <- a }}
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case a := <-at:
		return a
	case err := <-ended:
		ended <- nil
		t.Fatalf("run: %v", err)
		return ""
	}
}

func TestAServerAnswersByUDPAndTCPInBothFamilies(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, cluster()...)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		at := serve(t, r, address)
		for _, network := range []string{"udp", "tcp"} {
			client := wire.Client{Net: network, Timeout: time.Minute}
			m, _, err := client.Exchange(query("web.prod.svc.cluster.local", "A"), at)
			if err != nil || len(m.Answer) != 1 {
				t.Errorf("%s %s: %v, %v", network, at, m, err)
			}
		}
	}
}

func TestQueriesOnOneConnectionAreAllAnswered(t *testing.T) {
	at := serve(t, responder(dns.Options{}, dns.ViewOptions{}, cluster()...), "127.0.0.1:0")
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	c := &wire.Conn{Conn: conn}
	defer c.Close()
	const n = 200
	var group errgroup.Group
	group.Go(func() error {
		for i := range n {
			q := query("web.prod.svc.cluster.local", "A")
			q.Id = uint16(i)
			if err := c.WriteMsg(q); err != nil {
				return err
			}
		}
		return nil
	})
	seen := map[uint16]bool{}
	for range n {
		m, err := c.ReadMsg()
		if err != nil {
			t.Fatal(err)
		}
		seen[m.Id] = true
	}
	if err := group.Wait(); err != nil || len(seen) != n {
		t.Errorf("%d of %d answers, %v", len(seen), n, err)
	}
}

// A length that is not its message's costs the connection that it came by, and keeps neither others waiting nor the server from ending.
func TestALengthThatLiesKeepsNobodyElseWaiting(t *testing.T) {
	var open []net.Conn
	t.Cleanup(func() { // after the server's end
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	at := serve(t, responder(dns.Options{}, dns.ViewOptions{}, cluster()...), "127.0.0.1:0")
	message, err := query("web.prod.svc.cluster.local", "A").Pack()
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range [][]byte{{0}, {0, 0}, {0, 5}, {0xff, 0xff}, {0, byte(len(message) - 1)}, {0, byte(len(message) + 1)}} {
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
		if _, err := conn.Write(slices.Concat(said, message)); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"udp", "tcp"} {
			client := wire.Client{Net: network, Timeout: time.Minute}
			if m, _, err := client.Exchange(query("web.prod.svc.cluster.local", "A"), at); err != nil || len(m.Answer) != 1 {
				t.Errorf("after a length of %x, by %s: %v, %v", said, network, m, err)
			}
		}
	}
}

func TestAServerEndsThoughAClientGoesOnAsking(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	at, ended := make(chan string, 1), make(chan error, 1)
	s := &dns.Server{Responder: responder(dns.Options{}, dns.ViewOptions{}, cluster()...), Address: "127.0.0.1:0", Ready: func(a string) { at <- a }}
	go func() { ended <- s.Run(ctx) }()
	address := <-at
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := &wire.Conn{Conn: conn}
	ask := func() error {
		err := c.WriteMsg(query("web.prod.svc.cluster.local", "A"))
		if err == nil {
			_, err = c.ReadMsg()
		}
		return err
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	cancel()
	for refused := false; !refused; {
		another, err := net.Dial("tcp", address)
		if refused = err != nil; !refused {
			_ = another.Close()
		}
	}
	answered := 0
	for ask() == nil {
		answered++
	}
	if answered > 100 {
		t.Errorf("%d queries were answered after the end", answered)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An API server takes an externalName whose labels no message can carry.
func TestANameThatNoMessageCanCarryIsAFailure(t *testing.T) {
	at := serve(t, responder(dns.Options{}, dns.ViewOptions{}, cluster()...), "127.0.0.1:0")
	m, _, err := (&wire.Client{Timeout: time.Minute}).Exchange(query("long.prod.svc.cluster.local", "A"), at)
	if err != nil || m.Rcode != wire.RcodeServerFailure {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestASecondServerOnAPortIsRefused(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{})
	at := serve(t, r, "127.0.0.1:0")
	err := (&dns.Server{Responder: r, Address: at}).Run(context.Background())
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
}

// nameServer is an upstream with an answer of its own.
func nameServer(t *testing.T, answer func(w wire.ResponseWriter, q *wire.Msg)) netip.AddrPort {
	t.Helper()
	for {
		stream, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		packets, err := net.ListenPacket("udp", stream.Addr().String())
		if err != nil { // somebody else's port
			_ = stream.Close()
			continue
		}
		for _, s := range []*wire.Server{{Listener: stream}, {PacketConn: packets}} {
			s.Handler = wire.HandlerFunc(answer)
			started := make(chan struct{})
			s.NotifyStartedFunc = func() { close(started) }
			go func() { _ = s.ActivateAndServe() }()
			<-started
			t.Cleanup(func() { _ = s.Shutdown() })
		}
		return stream.Addr().(*net.TCPAddr).AddrPort()
	}
}

func says(data string) func(w wire.ResponseWriter, q *wire.Msg) {
	return func(w wire.ResponseWriter, q *wire.Msg) {
		m := new(wire.Msg)
		m.SetReply(q)
		rr, _ := wire.NewRR(q.Question[0].Name + " 60 IN " + data)
		m.Answer = []wire.RR{rr}
		_ = w.WriteMsg(m)
	}
}

func TestUpstreamsAreAskedUntilOneAnswers(t *testing.T) {
	var asked atomic.Int32
	failing := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		asked.Add(1)
		m := new(wire.Msg)
		m.SetRcode(q, wire.RcodeServerFailure)
		_ = w.WriteMsg(m)
	})
	good := nameServer(t, says("A 192.0.2.7"))
	u := dns.NewUpstreams([]netip.AddrPort{failing, good})
	m, err := u.Exchange(context.Background(), query("WWW.example.com", "A"))
	if err != nil || len(m.Answer) != 1 || m.Answer[0].Header().Name != "WWW.example.com." || m.Question[0].Name != "WWW.example.com." || asked.Load() != 1 {
		t.Errorf("got %v, %v", m, err)
	}
	m, err = dns.NewUpstreams([]netip.AddrPort{failing}).Exchange(context.Background(), query("www.example.com", "A"))
	if err != nil || m.Rcode != wire.RcodeServerFailure {
		t.Errorf("none knows: got %v, %v", m, err)
	}
}

// A server that a query had no time left for did not fail: the next query asks it before those that did.
func TestAnUpstreamThatHadNoTimeIsNotAvoided(t *testing.T) {
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var again atomic.Bool
	failing := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		if again.Load() {
			says("A 192.0.2.1")(w, q)
			return
		}
		if _, udp := w.LocalAddr().(*net.UDPAddr); !udp {
			_ = w.Close()
			return
		}
		m := new(wire.Msg)
		m.SetReply(q)
		m.Truncated = true
		_ = w.WriteMsg(m)
	})
	late := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		if again.Load() {
			says("A 192.0.2.2")(w, q)
			return
		}
		end()
	})
	u := dns.NewUpstreams([]netip.AddrPort{failing, late})
	if m, err := u.Exchange(ctx, query("www.example.com", "A")); err == nil {
		t.Fatalf("got %v", m)
	}
	again.Store(true)
	m, err := u.Exchange(context.Background(), query("www.example.com", "A"))
	if err != nil || len(m.Answer) != 1 || m.Answer[0].(*wire.A).A.String() != "192.0.2.2" {
		t.Errorf("got %v, %v", m, err)
	}
}

func TestWhatIsCutOffIsAskedByTCP(t *testing.T) {
	at := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
			m := new(wire.Msg)
			m.SetReply(q)
			m.Truncated = true
			_ = w.WriteMsg(m)
			return
		}
		says("TXT whole")(w, q)
	})
	m, err := dns.NewUpstreams([]netip.AddrPort{at}).Exchange(context.Background(), query("www.example.com", "TXT"))
	if err != nil || m.Truncated || len(m.Answer) != 1 {
		t.Errorf("got %v, %v", m, err)
	}
}

// A server that is older than EDNS says that it does not understand (RFC 6891 7).
func TestAServerWithoutEDNSIsAskedAgainWithout(t *testing.T) {
	var plain atomic.Int32
	at := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		if q.IsEdns0() != nil {
			m := new(wire.Msg).SetRcode(q, wire.RcodeFormatError)
			m.Question = nil
			_ = w.WriteMsg(m)
			return
		}
		plain.Add(1)
		says("A 192.0.2.7")(w, q)
	})
	m, err := dns.NewUpstreams([]netip.AddrPort{at}).Exchange(context.Background(), query("www.example.com", "A"))
	if err != nil || len(m.Answer) != 1 || plain.Load() != 1 {
		t.Errorf("got %v, %v, asked %d times without", m, err, plain.Load())
	}
}

// An upstream that spells the name in its own way might be somebody who guesses: it is believed by TCP alone.
func TestAnAnswerInAnotherSpellingIsAskedForAgainByTCP(t *testing.T) {
	var streams atomic.Int32
	at := nameServer(t, func(w wire.ResponseWriter, q *wire.Msg) {
		if _, udp := w.LocalAddr().(*net.UDPAddr); !udp {
			streams.Add(1)
		}
		q.Question[0].Name = strings.ToLower(q.Question[0].Name)
		says("A 192.0.2.7")(w, q)
	})
	u := dns.NewUpstreams([]netip.AddrPort{at})
	const name = "a-name-with-many-letters.so-that-chance-never-spells-it.all-in-lower-case.example.com"
	m, err := u.Exchange(context.Background(), query(name, "A"))
	if err != nil || len(m.Answer) != 1 || m.Answer[0].Header().Name != name+"." || streams.Load() != 1 {
		t.Errorf("got %v, %v, %d by TCP", m, err, streams.Load())
	}
}

func TestADeadUpstreamIsAnError(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _, _ = silent.ReadFrom(make([]byte, 512))
		cancel()
	}()
	u := dns.NewUpstreams([]netip.AddrPort{silent.LocalAddr().(*net.UDPAddr).AddrPort()})
	if m, err := u.Exchange(ctx, query("www.example.com", "A")); err == nil {
		t.Errorf("got %v", m)
	}
}
