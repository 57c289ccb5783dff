// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/trace"
)

// question is one line of `nearlb trace --packets`.
type question struct {
	ID    string `json:"id"`
	From  string `json:"from"`
	Src   string `json:"src"`
	Dst   string `json:"dst"`
	Proto string `json:"proto"`
}

// What nearlb trace says of live tables is what backends on this node and on the other one see of real sockets.
func checkTrace(t *testing.T, s *stage) {
	var questions []question
	var want []trace.Answer
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(backend)...)
		for _, w := range ways() {
			port := s.by(of, nodePort).address(w.six)
			local := netip.AddrPortFrom(loopback(w.six), port.Port())
			for _, ask := range []struct {
				from   trace.Door
				client host
				src    netip.Addr
				dst    netip.AddrPort
			}{
				{trace.FromNetwork, s.outside, s.outside.Address(w.six), port},
				{trace.FromPod, s.pod, s.pod.Address(w.six), port},
				{trace.FromHost, s.here, loopback(w.six), local},
			} {
				q := question{w.String() + " to " + backend.Name, string(ask.from), ask.src.String(), ask.dst.String(), w.network}
				questions = append(questions, q)
				want = append(want, s.told(q, dial(t, ask.client, w.network, ask.dst, s.port()), backend))
			}
		}
	}
	for i, got := range s.trace(questions) {
		if way := s.wayOf(questions[i]); got.Way == nil && way != "" || got.Way != nil && got.Way.Name != way {
			t.Errorf("%+v: trace names the way %+v, want %s", questions[i], got.Way, way)
		}
		if !slices.Equal(got.Backends, want[i].Backends) || got.SNAT != want[i].SNAT || got.Source == nil || *got.Source != *want[i].Source {
			t.Errorf("%+v: trace says %+v, source %v; want %+v, source %v", questions[i], got, got.Source, want[i], want[i].Source)
		}
	}
}

// wayOf is how a connection gets to its backend on another node, "": it comes from this node or stays there.
func (s *stage) wayOf(q question) lb.OffNode {
	switch {
	case q.From != string(trace.FromNetwork) || !strings.HasSuffix(q.ID, s.far.Name):
		return ""
	case !s.carries(netip.MustParseAddr(q.Src).Is6()):
		return lb.OffNodeSNAT
	case s.own != "":
		return s.own
	}
	return lb.OffNode(s.options.agent[slices.Index(s.options.agent, "--off-node")+1])
}

// told is what a trace has to say of a connection that was made.
func (s *stage) told(q question, conn *lab.Conn, backend *lab.Pod) trace.Answer {
	s.t.Helper()
	answer, err := conn.Who()
	if err != nil {
		s.t.Fatal(err)
	}
	source, tier := answer.Client.Addr(), "node"
	if backend.Node != s.here {
		tier = "zone"
	}
	own := backend.Address(source.Is6())
	return trace.Answer{
		Backends: []trace.Backend{{Address: own, Port: targetPort, Tier: tier, Count: 1}},
		SNAT:     source.String() != q.Src,
		Source:   &source,
	}
}

// trace asks the live tables of the first node.
func (s *stage) trace(questions []question) []trace.Answer {
	s.t.Helper()
	var text []byte
	for _, q := range questions {
		line, err := json.Marshal(q)
		if err != nil {
			s.t.Fatal(err)
		}
		text = append(append(text, line...), '\n')
	}
	file := filepath.Join(s.Dir, "packets.jsonl")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		s.t.Fatal(err)
	}
	said := s.run("trace", "--pin-path", s.here.PinPath(), "--packets", file, "-o", "json")
	var answers []trace.Answer
	if err := json.Unmarshal([]byte(said), &answers); err != nil || len(answers) != len(questions) {
		s.t.Fatalf("%d answers to %d questions, %v:\n%s", len(answers), len(questions), err, said)
	}
	return answers
}

func loopback(six bool) netip.Addr {
	if six {
		return netip.IPv6Loopback()
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}
