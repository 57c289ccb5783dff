// SPDX-License-Identifier: Apache-2.0

package dns_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
)

// held is outside for whom it was told to answer.
type held struct{ answers chan struct{} }

func (h held) Exchange(ctx context.Context, query *wire.Msg) (*wire.Msg, error) {
	<-h.answers
	return outside{}.Exchange(ctx, query)
}

func dialUDP(t *testing.T, at string) *wire.Conn {
	t.Helper()
	conn, err := net.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &wire.Conn{Conn: conn}
}

// Whoever asks for a name of the cluster does not wait for somebody's upstream, though both questions came by one socket.
func TestWhoAsksTheUpstreamKeepsNobodyWaiting(t *testing.T) {
	upstream := held{make(chan struct{})}
	at := serve(t, responder(dns.Options{Forwarder: dns.NewForwarder(upstream)}, dns.ViewOptions{}, cluster()...), "127.0.0.1:0")
	client := dialUDP(t, at)
	for _, name := range []string{"www.example.com", "out.prod.svc.cluster.local", "web.prod.svc.cluster.local"} {
		if err := client.WriteMsg(query(name, "A")); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	for range 3 {
		m, err := client.ReadMsg()
		if err != nil || len(m.Answer) == 0 {
			t.Fatalf("after %v: %v, %v", order, m, err)
		}
		if order = append(order, m.Question[0].Name); len(order) == 1 {
			close(upstream.answers)
		}
	}
	slices.Sort(order[1:])
	if want := []string{"web.prod.svc.cluster.local.", "out.prod.svc.cluster.local.", "www.example.com."}; !slices.Equal(order, want) {
		t.Errorf("answers in the order %v", order)
	}
}

// A socket that is bound to one address is read here, one that is bound to all by the library: what comes is taken alike.
func TestDatagramsAreTakenAsTheLibraryTakesThem(t *testing.T) {
	r := responder(dns.Options{}, dns.ViewOptions{}, cluster()...)
	ours := serve(t, r, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(serve(t, r, "0.0.0.0:0"))
	if err != nil {
		t.Fatal(err)
	}
	asked := query("web.prod.svc.cluster.local", "A")
	asked.Id = 1
	plain, err := asked.Pack()
	if err != nil {
		t.Fatal(err)
	}
	edited := func(at int, with ...byte) []byte {
		out := slices.Clone(plain)
		copy(out[at:], with)
		return out
	}
	for what, message := range map[string][]byte{
		"a question":         edited(0, 1, 2),
		"a response":         edited(2, 0x80),
		"an update":          edited(2, 5<<3|1),
		"a notification":     edited(2, 4<<3),
		"an unknown opcode":  edited(2, 15<<3|1, 0x30),
		"two questions":      edited(4, 0, 2),
		"no question":        edited(4, 0, 0),
		"two answers":        edited(6, 0, 2),
		"three additional":   edited(10, 0, 3),
		"a header":           plain[:12],
		"half a header":      plain[:6],
		"nothing":            {},
		"a question cut off": plain[:20],
		"bytes behind it":    append(slices.Clone(plain), 1, 2, 3),
		"a pointer":          edited(12, 0xc0, 0xff),
		"another class":      edited(len(plain)-2, 0, 3),
	} {
		told := toldOf(t, ours, message, 0)
		if diff := cmp.Diff(toldOf(t, "127.0.0.1:"+port, message, len(told)), told); diff != "" {
			t.Errorf("%s (-library +ours)\n%s", what, diff)
		}
	}
}

// toldOf is what a server says to a datagram and to a question after it, which it always answers: until that is answered, or so many answers
// of one that answers in any order. Whatever else it says comes before it answers a further question. They are sorted.
func toldOf(t *testing.T, at string, message []byte, answers int) (all []string) {
	t.Helper()
	client := dialUDP(t, at)
	say := func(m []byte) {
		if _, err := client.Conn.Write(m); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(until func(id uint16) bool) {
		in := make([]byte, wire.DefaultMsgSize)
		for ended := false; !ended; {
			n, err := client.Conn.Read(in)
			if err != nil || n < 2 {
				t.Fatalf("%d bytes, %v", n, err)
			}
			all = append(all, hex.EncodeToString(in[:n]))
			ended = until(binary.BigEndian.Uint16(in))
		}
	}
	end := func(id uint16) []byte {
		q := query("plain.prod.svc.cluster.local", "A")
		q.Id = id
		packed, err := q.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return packed
	}
	const first, last = 0xffff, 0xfffe
	say(message)
	say(end(first))
	told := false
	hear(func(id uint16) bool {
		told = told || id == first
		return told && len(all)+1 >= answers // and that to the last question
	})
	say(end(last))
	hear(func(id uint16) bool { return id == last })
	slices.Sort(all)
	return all
}
