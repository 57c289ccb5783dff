// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lb"
)

// noted is an observer that counts.
type noted struct{ answered map[string]int }

func (n noted) Answered(qtype, rcode string, way Way, _ time.Duration) {
	n.answered[fmt.Sprint(qtype, " ", rcode, " ", way)]++
}
func (noted) Asked(Result, time.Duration) {}

// repeater asks a server's own table of recent answers, as a socket does.
type repeater struct {
	*datagrams
	t *testing.T
}

func newRepeater(t *testing.T, r *Responder) repeater {
	d := &datagrams{Server: &Server{Responder: r}, recent: newRecent(r.view), in: newBatch(nil, 0), out: newBatch(nil, 0)}
	return repeater{d, t}
}

// answer is what is said to a question, and whether it was said before.
func (r repeater) answer(name string, qtype, id uint16) (reply *wire.Msg, repeated bool) {
	r.t.Helper()
	q := new(wire.Msg).SetQuestion(name, qtype)
	q.Id = id
	message, err := q.Pack()
	if err != nil {
		r.t.Fatal(err)
	}
	reply = new(wire.Msg)
	if s := r.recent.find(message); s != nil {
		if err := reply.Unpack(s.appendTo(nil, message)); err != nil {
			r.t.Fatal(err)
		}
		return reply, true
	}
	written := r.recent.view.mu.written.Load()
	reply = r.Responder.Serve(context.Background(), q, Client{})
	data, err := reply.Pack()
	if err != nil {
		r.t.Fatal(err)
	}
	r.recent.keep(written, message, reply, data)
	return reply, false
}

func clusterIP(name, address string) *lb.NamedService {
	return &lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: name}, ClusterIPs: []netip.Addr{netip.MustParseAddr(address)}}
}

// Whatever changes of the view, no question that is asked after that gets an answer from before.
func TestAnAnswerIsRepeatedUntilTheViewIsWritten(t *testing.T) {
	view := NewView(ViewOptions{Node: lb.Node{Name: "n1"}})
	view.Set(clusterIP("web", "10.96.0.10"))
	r := newRepeater(t, NewResponder(view, Options{Zones: []string{"cluster.local"}, Pods: PodsVerified}))
	pod := lb.NamedPod{Name: lb.PodName{Namespace: "prod", Name: "p"}, Addresses: []netip.Addr{netip.MustParseAddr("10.244.0.1")}}
	db := &lb.NamedService{Name: lb.ServiceName{Namespace: "prod", Name: "db"}, Headless: true}
	db.Slices = []*lb.NamedSlice{lb.NewNamedSlice("s", nil, lb.NamedEndpoint{Addresses: pod.Addresses, Is: lb.IsReady})}
	for _, row := range []struct {
		what, name string
		change     func()
		rcode, of  int
	}{
		{"the first", "web.prod.svc.cluster.local.", func() {}, wire.RcodeSuccess, 1},
		{"missing before all was told", "gone.prod.svc.cluster.local.", func() {}, wire.RcodeServerFailure, 0},
		{"Synced", "gone.prod.svc.cluster.local.", view.Synced, wire.RcodeNameError, 0},
		{"Set", "web.prod.svc.cluster.local.", func() { view.Set(clusterIP("web", "10.96.0.11")) }, wire.RcodeSuccess, 1},
		{"Set, headless", "db.prod.svc.cluster.local.", func() { view.Set(db) }, wire.RcodeSuccess, 1},
		{"Narrow", "web.prod.svc.cluster.local.", func() { view.Narrow(clusterIP("web", "10.96.0.12")) }, wire.RcodeServerFailure, 0},
		{"Remove", "web.prod.svc.cluster.local.", func() { view.Remove(lb.ServiceName{Namespace: "prod", Name: "web"}) }, wire.RcodeNameError, 0},
		{"Doubt", "web.prod.svc.cluster.local.", func() { view.Doubt(lb.ServiceName{Namespace: "prod", Name: "web"}) }, wire.RcodeServerFailure, 0},
		{"SetNamespace", "new.svc.cluster.local.", func() { view.SetNamespace("new", true) }, wire.RcodeSuccess, 0},
		{"SetPod", "10-244-0-1.prod.pod.cluster.local.", func() { view.SetPod(pod) }, wire.RcodeSuccess, 1},
		{"RemovePod", "10-244-0-1.prod.pod.cluster.local.", func() { view.RemovePod(pod.Name) }, wire.RcodeNameError, 0},
	} {
		r.answer(row.name, wire.TypeA, 1)
		row.change()
		for id := uint16(1); id < 4; id++ {
			reply, repeated := r.answer(row.name, wire.TypeA, id)
			if reply.Id != id || reply.Rcode != row.rcode || len(reply.Answer) != row.of {
				t.Errorf("%s: %v", row.what, reply)
			}
			if !repeated && id > 1 {
				t.Errorf("%s: it was made anew", row.what)
			}
		}
	}
}

// Clients that take the first address share the endpoints: what has several is made each time.
func TestAnswersOfSeveralRecordsAreNotRepeated(t *testing.T) {
	view := NewView(ViewOptions{})
	web := clusterIP("web", "10.96.0.10")
	web.ClusterIPs = append(web.ClusterIPs, netip.MustParseAddr("10.96.0.11"))
	view.Set(web)
	view.Synced()
	r := newRepeater(t, NewResponder(view, Options{Zones: []string{"cluster.local"}}))
	first := map[string]bool{}
	for id := range uint16(100) {
		reply, _ := r.answer("web.prod.svc.cluster.local.", wire.TypeA, id)
		first[reply.Answer[0].String()] = true
	}
	if len(first) != 2 {
		t.Errorf("first were %v", first)
	}
}

// A question in force takes no memory, and is counted as one that is looked up.
func TestAnAnswerIsRepeatedWithoutMemory(t *testing.T) {
	view := NewView(ViewOptions{})
	view.Set(clusterIP("web", "10.96.0.10"))
	view.Synced()
	count := noted{map[string]int{}}
	r := newRepeater(t, NewResponder(view, Options{Zones: []string{"cluster.local"}, Observer: count}))
	r.answer("web.prod.svc.cluster.local.", wire.TypeA, 1)
	message, err := new(wire.Msg).SetQuestion("web.prod.svc.cluster.local.", wire.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	r.messages[0], r.in.headers[0].length = message, uint32(len(message))
	r.Responder.options.Observer = nil
	allocated := testing.AllocsPerRun(100, func() {
		if r.out.first, r.out.last = 0, 0; !r.repeat(0) {
			t.Error("it is not known")
		}
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
	r.Responder.options.Observer = count
	r.out.first, r.out.last = 0, 0
	r.repeat(0)
	if want := "A NOERROR responder"; count.answered[want] != 2 {
		t.Errorf("counted: %v, want 2 of %s", count.answered, want)
	}
}

// Sockets repeat answers at once while the view is written: a client that asks after a write gets what was written.
func TestWhoAsksAfterAWriteGetsWhatWasWritten(t *testing.T) {
	view := NewView(ViewOptions{})
	view.Synced()
	ctx, cancel := context.WithCancel(t.Context())
	at := make(chan string, 1)
	s := &Server{Responder: NewResponder(view, Options{Zones: []string{"cluster.local"}}), Address: "127.0.0.1:0", Ready: func(a string) { at <- a }}
	var group, server errgroup.Group
	server.Go(func() error { return s.Run(ctx) })
	to := <-at
	for client := range 4 {
		group.Go(func() error {
			conn, err := wire.DialTimeout("udp", to, time.Minute)
			if err != nil {
				return err
			}
			defer conn.Close()
			name := fmt.Sprintf("web-%d", client)
			for i := range 500 {
				want := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
				view.Set(clusterIP(name, want))
				for range 3 {
					q := new(wire.Msg).SetQuestion(name+".prod.svc.cluster.local.", wire.TypeA)
					if err := conn.WriteMsg(q); err != nil {
						return err
					}
					reply, err := conn.ReadMsg()
					if err != nil {
						return err
					}
					if len(reply.Answer) != 1 || reply.Id != q.Id || reply.Answer[0].(*wire.A).A.String() != want {
						return fmt.Errorf("want %s: %v", want, reply)
					}
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := server.Wait(); err != nil {
		t.Error(err)
	}
}
