// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// silentRack is a rack of a node that heartbeats tell of. Between two steps of the test it waits.
type silentRack struct {
	*rack
	heartbeats chan pulseNews
	pulse      *pulse
	now        func() uint64
	alive      bool // its first backend answers this node
	cannot     bool // this node cannot ask
	gone       bool // its backends take no connections
	asked      int
	told       *toldChanges
}

func (s *silentRack) OnNodes(names ...string) map[string][]maps.Evidence {
	s.mu.Lock()
	gone := s.gone
	s.mu.Unlock()
	if gone {
		return nil
	}
	return s.rack.OnNodes(names...)
}

func underSilence(t *testing.T, mode lb.Ejection, backends int, test func(*silentRack)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &silentRack{rack: &rack{until: make([]uint64, backends), refuses: map[uint32]bool{}, times: map[uint32]int{}, modes: map[uint32]lb.Ejection{}},
			heartbeats: make(chan pulseNews), pulse: newPulse("n1"), now: func() uint64 { return uint64(time.Hour + time.Since(start)) }}
		s.pulse.follow(map[string][]netip.Addr{"n2": {netip.MustParseAddr("10.0.0.2")}}, []string{"n2"})
		s.pulse.peers["n2"].answered = true
		e := newEjector(s, lb.EjectionOn, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
		s.told = newTold(t)
		e.changes = s.told.changes
		e.now, e.heartbeats, e.pulseNews, e.nodes = s.now, mode, s.heartbeats, s.pulse
		e.hear = func(_ context.Context, at netip.AddrPort) reply {
			time.Sleep(answerTime)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			if s.alive && at == s.evidence(1).Address {
				return replyAnswered
			}
			if s.cannot {
				return replyUnknown
			}
			return replySilent
		}
		ctx, cancel := context.WithCancel(t.Context())
		told, ended := make(chan maps.Suspect), make(chan struct{})
		go func() {
			defer close(ended)
			e.run(ctx, told)
		}()
		test(s)
		close(told)
		<-ended
		cancel()
		time.Sleep(2 * answerTime) // who still asks
	})
}

// set changes what programs and backends do.
func (s *silentRack) set(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	time.Sleep(2 * time.Second)
}

func (s *silentRack) tell(n pulseNews) {
	s.heartbeats <- n
	time.Sleep(2 * answerTime)
}

// A node is silent, and so are its backends: all are left out at once but those that have to stay, or whose Service wants them to. What has to
// stay no more follows within seconds. As soon as the node is heard, all are back; while it is not, none is, also once it is asked no more.
func TestTheBackendsOfASilentNodeAreLeftOutUntilItIsHeard(t *testing.T) {
	for name, row := range map[string]struct {
		change pulseChange
		left   int
	}{"it answers": {pulseHeard, 0}, "it is asked no more": {pulseUnused, 298}} {
		t.Run(name, func(t *testing.T) {
			underSilence(t, lb.EjectionOn, 300, func(s *silentRack) {
				s.set(func() { s.refuses[7], s.modes[8], s.modes[9] = true, lb.EjectionOff, lb.EjectionObserve })
				s.tell(pulseNews{"n2", pulseSilent})
				if out := s.Ejected(); len(out) != 297 || out[0].Times != 0 || out[0].Until != s.now()+uint64(nodeOutTime-answerTime) {
					t.Errorf("%d are left out, such as %+v", len(out), out[0])
				}
				if s.asked > askOfSilent {
					t.Errorf("%d backends were asked", s.asked)
				}
				s.set(func() { delete(s.refuses, 7) })
				time.Sleep(time.Duration(askAgain))
				if out := s.Ejected(); len(out) != 298 {
					t.Errorf("%d are left out once none has to stay", len(out))
				}
				s.tell(pulseNews{"n2", row.change})
				if out := s.Ejected(); len(out) != row.left {
					t.Errorf("%d are left out then", len(out))
				}
			})
		})
	}
}

// Clients had found one of a silent node's backends before: no connection tries it while the node's time lasts.
func TestABackendOfASilentNodeThatWasLeftOutBeforeIsTriedAsLateAsTheOthers(t *testing.T) {
	underSilence(t, lb.EjectionOn, 3, func(s *silentRack) {
		s.set(func() { s.until[0], s.times[1] = s.now()+uint64(10*time.Second), 2 })
		s.tell(pulseNews{"n2", pulseSilent})
		end := s.now() + uint64(nodeOutTime-answerTime)
		for _, v := range s.Ejected() {
			if v.Until != end || v.Times != map[bool]int{true: 2}[v.ID == 1] {
				t.Errorf("%+v, want it left out until %d", v, end)
			}
		}
	})
}

// Who cannot ask knows nothing: a node whose backends this one cannot connect to is not left out, before it can.
func TestASilentNodeWhoseBackendsCannotBeAskedIsNotLeftOut(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.set(func() { s.cannot = true })
		s.tell(pulseNews{"n2", pulseSilent})
		time.Sleep(10 * time.Second)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out by a node that could not ask", len(out))
		}
		s.set(func() { s.cannot = false })
		if out := s.Ejected(); len(out) != 100 {
			t.Errorf("%d are left out once it could", len(out))
		}
	})
}

// Of a node's backends those of different Services are asked first, each at another address.
func TestBackendsOfDifferentServicesAreAskedOfASilentNode(t *testing.T) {
	of := func(service string, last byte) maps.Evidence {
		return maps.Evidence{Port: lb.PortName{Service: lb.ServiceName{Namespace: "d", Name: service}}, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 80)}
	}
	var got []byte
	for _, at := range someAddresses([]maps.Evidence{of("a", 1), of("a", 2), of("a", 3), of("b", 1), of("b", 4), of("c", 4), of("c", 5), of("c", 6)}) {
		got = append(got, at.Addr().As4()[3])
	}
	if want := []byte{1, 4, 5, 2}; !slices.Equal(got, want) {
		t.Errorf("%v are asked, want %v", got, want)
	}
}

// Heartbeats alone prove nothing: whatever keeps them away, backends that answer this node get connections, and the node is taken for one that
// answers none before it has answered again.
func TestANodeThatAnswersNoHeartbeatButHasABackendThatAnswersIsNotLeftOut(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.set(func() { s.alive = true })
		s.tell(pulseNews{"n2", pulseSilent})
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out", len(out))
		}
		if s.pulse.peers["n2"].answered {
			t.Error("it is suspected again at once")
		}
	})
}

// While a node is left out its backends are asked now and then, so that it comes back though heartbeats are lost and nobody tries it.
func TestABackendThatAnswersThisNodeLaterBringsItsNodeBack(t *testing.T) {
	underSilence(t, lb.EjectionOn, askOfSilent, func(s *silentRack) {
		s.tell(pulseNews{"n2", pulseSilent})
		if out := s.Ejected(); len(out) != askOfSilent {
			t.Errorf("%d are left out", len(out))
		}
		time.Sleep(nodeAskTime / 2)
		if s.asked != askOfSilent {
			t.Errorf("%d were asked in half the time", s.asked)
		}
		s.set(func() { s.alive = true })
		time.Sleep(nodeAskTime)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out of a node that answers", len(out))
		}
	})
}

// Kubernetes takes the backends of a dead node away: that there is none to ask any more says nothing of the node, which stays silent.
func TestASilentNodeWhoseBackendsAreGoneIsNotHeard(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.tell(pulseNews{"n2", pulseSilent})
		s.set(func() { s.gone = true })
		time.Sleep(3 * nodeAskTime)
		if !s.pulse.peers["n2"].answered {
			t.Error("it counts as heard, by a backend that is not there")
		}
		s.set(func() { s.gone = false; clear(s.until) })
		if out := s.Ejected(); len(out) != 100 {
			t.Errorf("%d are left out once there are some again", len(out))
		}
	})
}

// An agent that starts knows of a node that an earlier one left out, without asking: the first answer takes its backends back.
func TestANodeThatAnEarlierAgentLeftOutIsBackByItsFirstAnswer(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.set(func() {
			for i := range s.until {
				s.until[i] = s.now() + uint64(nodeOutTime)
			}
		})
		s.heartbeats <- pulseNews{"n2", pulseStill}
		s.tell(pulseNews{"n2", pulseHeard})
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out of a node that answers", len(out))
		}
	})
}

// What began in the journal ends there, also where nobody hears of the node again.
func TestTheJournalSaysThatASilentNodeIsAskedNoMore(t *testing.T) {
	for _, began := range []pulseChange{pulseSilent, pulseStill} {
		underSilence(t, lb.EjectionOn, 2, func(s *silentRack) {
			s.tell(pulseNews{"n2", began})
			s.told.lines(t)
			s.set(func() { s.gone = true })
			s.tell(pulseNews{"n2", pulseUnused})
			lines, _, _, _ := s.told.log.From(0)
			last := string(lines[len(lines)-1])
			for _, want := range []string{`"node-unused"`, `"d/web-1"`, `"d/web-2"`, "node n2"} {
				if !strings.Contains(last, want) {
					t.Errorf("%s is not in %s", want, last)
				}
			}
		})
	}
}

// racks are of many nodes, each of which has a backend.
type racks struct {
	*rack
	looks int
}

func (r *racks) OnNodes(names ...string) map[string][]maps.Evidence {
	r.looks++
	on := map[string][]maps.Evidence{}
	for i, name := range names {
		on[name] = []maps.Evidence{r.evidence(uint32(i + 1))}
	}
	return on
}

// Nodes that have just become silent do not wait for those that are left out: of these some are asked in a second. All that is asked at once takes
// one look at the tables.
func TestNodesThatHaveBecomeSilentAreAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &racks{rack: &rack{until: make([]uint64, 200)}}
		e := newEjector(r, lb.EjectionOn, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
		e.heartbeats, e.now = lb.EjectionOff, func() uint64 { return uint64(time.Hour) }
		e.hear = func(ctx context.Context, _ netip.AddrPort) reply { <-ctx.Done(); return replyUnknown }
		for i := range 100 {
			e.silent[fmt.Sprint("old", i)] = &silentNode{out: true}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		count := func() (first, again int) {
			for _, s := range e.silent {
				switch {
				case s.asked && s.out:
					again++
				case s.asked:
					first++
				}
			}
			return first, again
		}
		e.lookAtSilent(ctx)
		if first, again := count(); first != 0 || again != askOutAgain || r.looks != 1 {
			t.Errorf("%d and %d are asked in %d looks", first, again, r.looks)
		}
		for i := range askSilent {
			e.silent[fmt.Sprint("new", i)] = &silentNode{}
		}
		e.lookAtSilent(ctx)
		if first, again := count(); first != askSilent-askOutAgain || again != askOutAgain || r.looks != 2 {
			t.Errorf("%d and %d are asked in %d looks", first, again, r.looks)
		}
	})
}

// A client's connection, or the one that tries a backend, is answered: the node has power.
func TestABackendThatAnswersAClientBringsItsNodeBack(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.tell(pulseNews{"n2", pulseSilent})
		s.set(func() {
			s.until[4] = 0
			s.back = append(s.back, maps.Readmission{Evidence: s.evidence(5), Because: "it answered a connection", Answered: true})
		})
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out", len(out))
		}
		if s.pulse.peers["n2"].answered {
			t.Error("it is suspected again at once")
		}
	})
}

// Observed: told, and nothing else. A node that is heard before its backends were asked to the end is not left out.
func TestSilentNodesThatAreNotLeftOut(t *testing.T) {
	underSilence(t, lb.EjectionObserve, 100, func(s *silentRack) {
		s.tell(pulseNews{"n2", pulseSilent})
		time.Sleep(5 * time.Second)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out, though that is observed only", len(out))
		}
		s.tell(pulseNews{"n2", pulseHeard})
	})
	underSilence(t, lb.EjectionOn, 100, func(s *silentRack) {
		s.heartbeats <- pulseNews{"n2", pulseSilent}
		s.heartbeats <- pulseNews{"n2", pulseHeard}
		time.Sleep(5 * time.Second)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out of a node that was heard", len(out))
		}
	})
}
