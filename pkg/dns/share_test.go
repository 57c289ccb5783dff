// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/synctest"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// patientUpstream answers once it is told to.
type patientUpstream chan struct{}

func (p patientUpstream) Exchange(_ context.Context, query *wire.Msg) (*wire.Msg, error) {
	<-p
	return new(wire.Msg).SetReply(query), nil
}

// One client's questions about the world do not use up what others need, and nobody's those about the cluster.
func TestQuestionsThatWaitForTheUpstreamAreSharedAmongClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		upstream := make(patientUpstream)
		view := NewView(ViewOptions{})
		view.Set(&lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}})
		view.Set(&lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: "out"}, ExternalName: "www.example.com"})
		view.Synced()
		r := NewResponder(view, Options{Zones: []string{"cluster.local"}, Forwarder: NewForwarder(upstream)})
		r.options.Forwarder.waiting.most = 8
		rcodes := make(chan int, 100)
		ask := func(name, client string, times int) {
			for range times {
				go func() {
					rcodes <- r.Serve(t.Context(), new(wire.Msg).SetQuestion(name, wire.TypeA), Client{Address: netip.MustParseAddr(client)}).Rcode
				}()
			}
			synctest.Wait()
		}
		answered := func(rcode, times int) {
			t.Helper()
			if len(rcodes) != times {
				t.Fatalf("%d answers, want %d", len(rcodes), times)
			}
			for range times {
				if got := <-rcodes; got != rcode {
					t.Errorf("got %s, want %s", wire.RcodeToString[got], wire.RcodeToString[rcode])
				}
			}
		}
		ask("www.example.com.", "10.244.1.1", 10)
		answered(wire.RcodeServerFailure, 6)
		ask("out.prod.svc.cluster.local.", "10.244.1.1", 1)
		answered(wire.RcodeServerFailure, 1)
		ask("web.prod.svc.cluster.local.", "10.244.1.1", 1)
		answered(wire.RcodeSuccess, 1)
		ask("www.example.com.", "10.244.1.2", 10)
		answered(wire.RcodeServerFailure, 8)
		close(upstream)
		synctest.Wait()
		answered(wire.RcodeSuccess, 6)
		ask("out.prod.svc.cluster.local.", "10.244.1.1", 1)
		answered(wire.RcodeSuccess, 1)
		if r.options.Forwarder.waiting.taken != 0 || len(r.options.Forwarder.waiting.by) != 0 {
			t.Errorf("%d places of %v are not given back", r.options.Forwarder.waiting.taken, r.options.Forwarder.waiting.by)
		}
	})
}

// connect opens a connection from an address. The result is the server's end; nil: the server closed it.
func connect(t *testing.T, accepted <-chan net.Conn, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ended := make(chan struct{})
	go func() {
		_, _ = client.Read(make([]byte, 1))
		close(ended)
	}()
	select {
	case server := <-accepted:
		return server
	case <-ended:
		return nil
	}
}

func TestConnectionsAreSharedAmongClients(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	s := &streams{Listener: listener, share: &share{most: 4}}
	accepted := make(chan net.Conn)
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	at := listener.Addr().String()
	first := connect(t, accepted, "127.0.0.1", at)
	for _, row := range []struct {
		from string
		open bool
	}{{"127.0.0.1", true}, {"127.0.0.1", false}, {"127.0.0.2", true}, {"127.0.0.2", false}} {
		if open := connect(t, accepted, row.from, at) != nil; open != row.open {
			t.Errorf("%s: open %v", row.from, open)
		}
	}
	for range 2 { // the library closes, and so does a write that fails
		_ = first.Close()
		s.share.mu.Lock()
		if s.share.taken != 2 {
			t.Errorf("%d connections are open, want 2", s.share.taken)
		}
		s.share.mu.Unlock()
	}
}

func TestAClientThatTakesNoAnswerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		left := 0
		s := &stream{Conn: server, leave: func() { left++ }}
		began := time.Now()
		if _, err := s.Write([]byte("answer")); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != writeTime || left != 1 {
			t.Errorf("%v after %v, left %d times", err, time.Since(began), left)
		}
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection is open: %v", err)
		}
	})
}

// What did not answer is tried again by one question, not by all that come.
func TestOneQuestionTriesAnUpstreamThatFailed(t *testing.T) {
	u := NewUpstreams([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("192.0.2.2:53")})
	first := func(now time.Time) string { return u.order(now)[0].address }
	began := time.Now()
	u.servers[0].failed = began
	for _, row := range []struct {
		after time.Duration
		first string
	}{{avoidTime - 1, "192.0.2.2:53"}, {avoidTime, "192.0.2.1:53"}, {avoidTime, "192.0.2.2:53"}, {2*avoidTime - 1, "192.0.2.2:53"}, {2 * avoidTime, "192.0.2.1:53"}} {
		if got := first(began.Add(row.after)); got != row.first {
			t.Errorf("after %v: %s, want %s", row.after, got, row.first)
		}
	}
	u.servers[0].note(nil)
	if got := first(began.Add(2 * avoidTime)); got != "192.0.2.1:53" {
		t.Errorf("it has answered: got %s", got)
	}
}
