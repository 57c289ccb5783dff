// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// silence is a rack of a node that heartbeats tell of. Between two steps of the test it waits.
type silence struct {
	*rack
	heartbeats chan pulseNews
	pulse      *pulse
	now        func() uint64
	alive      bool // its first backend answers this node
	asked      int
}

func underSilence(t *testing.T, mode lb.Ejection, backends int, test func(*silence)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := &silence{rack: &rack{until: make([]uint64, backends), refuses: map[uint32]bool{}, times: map[uint32]int{}, modes: map[uint32]lb.Ejection{}},
			heartbeats: make(chan pulseNews), pulse: newPulse("n1"), now: func() uint64 { return uint64(time.Hour + time.Since(start)) }}
		s.pulse.follow(map[string][]netip.Addr{"n2": {netip.MustParseAddr("10.0.0.2")}}, []string{"n2"})
		s.pulse.peers["n2"].answered = true
		e := newEjector(s.rack, lb.EjectionOn, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
		e.now, e.heartbeats, e.silences, e.nodes = s.now, mode, s.heartbeats, s.pulse
		e.hear = func(_ context.Context, at netip.AddrPort) reply {
			time.Sleep(answerTime)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			if s.alive && at == s.evidence(1).Address {
				return replyAnswered
			}
			return replySilent
		}
		told, ended := make(chan maps.Suspect), make(chan struct{})
		go func() {
			defer close(ended)
			e.run(t.Context(), told)
		}()
		test(s)
		time.Sleep(2 * answerTime)
		close(told)
		<-ended
	})
}

// set changes what programs and backends do.
func (s *silence) set(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	time.Sleep(2 * time.Second)
}

func (s *silence) tell(n pulseNews) {
	s.heartbeats <- n
	time.Sleep(2 * answerTime)
}

// A node is silent, and so are its backends: all are left out at once but those that have to stay, or whose Service wants them to. What has to
// stay no more follows within seconds. As soon as the node is heard, all are back.
func TestTheBackendsOfASilentNodeAreLeftOutUntilItIsHeard(t *testing.T) {
	for name, news := range map[string]pulseNews{"it answers": {node: "n2"}, "it is gone": {node: "n2", gone: true}} {
		t.Run(name, func(t *testing.T) {
			underSilence(t, lb.EjectionOn, 300, func(s *silence) {
				s.set(func() { s.refuses[7], s.modes[8], s.modes[9] = true, lb.EjectionOff, lb.EjectionObserve })
				s.tell(pulseNews{node: "n2", silent: true})
				if out := s.Ejected(); len(out) != 297 || out[0].Times != 0 || out[0].Until != s.now()+uint64(10*time.Second-answerTime) {
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
				s.tell(news)
				if out := s.Ejected(); len(out) != 0 {
					t.Errorf("%d are left out after the node was heard", len(out))
				}
			})
		})
	}
}

// Heartbeats alone prove nothing: whatever keeps them away, backends that answer this node get connections, and the node is taken for one that
// answers none before it has answered again.
func TestANodeThatAnswersNoHeartbeatButHasABackendThatAnswersIsNotLeftOut(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silence) {
		s.set(func() { s.alive = true })
		s.tell(pulseNews{node: "n2", silent: true})
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out", len(out))
		}
		if s.pulse.peers["n2"].answered {
			t.Error("it is suspected again at once")
		}
	})
}

// A client's connection, or the one that tries a backend, is answered: the node has power.
func TestABackendThatAnswersAClientBringsItsNodeBack(t *testing.T) {
	underSilence(t, lb.EjectionOn, 100, func(s *silence) {
		s.tell(pulseNews{node: "n2", silent: true})
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
	underSilence(t, lb.EjectionObserve, 100, func(s *silence) {
		s.tell(pulseNews{node: "n2", silent: true})
		time.Sleep(5 * time.Second)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out, though that is observed only", len(out))
		}
		s.tell(pulseNews{node: "n2"})
	})
	underSilence(t, lb.EjectionOn, 100, func(s *silence) {
		s.heartbeats <- pulseNews{node: "n2", silent: true}
		s.heartbeats <- pulseNews{node: "n2"}
		time.Sleep(5 * time.Second)
		if out := s.Ejected(); len(out) != 0 {
			t.Errorf("%d are left out of a node that was heard", len(out))
		}
	})
}
