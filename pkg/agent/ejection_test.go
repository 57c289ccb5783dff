// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// ward is one backend as tables and programs have it. The test has mu but while time goes by, the ejector where it asks for something.
type ward struct {
	mu       sync.Mutex
	evidence maps.Evidence
	gone     bool
	out      bool // it is listed as left out
	refuses  bool // too few others are left
	lengths  []time.Duration
	now      func() uint64
}

var suspected = maps.Suspect{ID: 7, Generation: 3}

func (w *ward) Evidence(s maps.Suspect) (maps.Evidence, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.evidence, s == suspected && !w.gone
}

func (w *ward) Eject(_ maps.Suspect, until uint64, times int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuses {
		return "half of them have to stay", nil
	}
	w.out, w.evidence.Since, w.evidence.Until, w.evidence.Times = true, w.now(), until, times
	w.lengths = append(w.lengths, time.Duration(until-w.now()))
	return "", nil
}

func (w *ward) OnNodes(...string) map[string][]maps.Evidence { return nil }

func (w *ward) Doubtful(maps.Suspect) (string, []maps.Evidence) { return "", nil }

func (w *ward) Readmit(maps.Suspect) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.readmit()
}

func (w *ward) readmit() bool {
	was := w.out
	w.out, w.evidence.Until, w.evidence.Unanswered = false, 0, 0
	return was
}

func (w *ward) Ejected() []maps.Evidence {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out && w.evidence.Until != 0 {
		return []maps.Evidence{w.evidence}
	}
	return nil
}

func (w *ward) Readmitted() []maps.Readmission {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out && w.evidence.Until == 0 {
		w.out = false
		return []maps.Readmission{{Evidence: w.evidence, Because: "it answered a connection"}}
	}
	return nil
}

// ejecting is an ejector over one backend, in a bubble of synctest.
type ejecting struct {
	*ward
	answers bool   // the backend answers this node
	unable  bool   // this node cannot ask
	during  func() // what happens while it is asked
	asked   int
	told    chan maps.Suspect
}

// underEjection runs an ejector. Between two steps of the test it waits.
func underEjection(t *testing.T, mode lb.Ejection, test func(*ejecting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		now := func() uint64 { return uint64(time.Hour + time.Since(start)) }
		e := &ejecting{ward: &ward{now: now}, told: make(chan maps.Suspect)}
		e.evidence = maps.Evidence{Suspect: suspected, Unanswered: 3, Clients: 2, Port: lb.PortName{Service: lb.ServiceName{Namespace: "d", Name: "web"}}}
		ejector := newEjector(e.ward, mode, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
		ejector.now = now
		ejector.hear = func(context.Context, netip.AddrPort) reply {
			e.mu.Lock()
			e.asked++
			if e.during != nil {
				e.during()
			}
			e.mu.Unlock()
			time.Sleep(answerTime)
			e.mu.Lock()
			defer e.mu.Unlock()
			switch {
			case e.unable:
				return replyUnknown
			case e.answers:
				return replyAnswered
			}
			return replySilent
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			ejector.run(t.Context(), e.told)
		}()
		e.mu.Lock()
		test(e)
		e.mu.Unlock()
		time.Sleep(2 * answerTime) // of a question that is still asked
		close(e.told)
		<-ended
	})
}

// pass lets time go by.
func (e *ejecting) pass(d time.Duration) {
	e.mu.Unlock()
	defer e.mu.Lock()
	time.Sleep(d)
	synctest.Wait()
}

// suspect has the programs tell of the backend.
func (e *ejecting) suspect() {
	e.mu.Unlock()
	e.told <- suspected
	e.mu.Lock()
	e.pass(2 * answerTime)
}

// try has a connection try the backend, as programs let one when the time is over; its answer does not come.
func (e *ejecting) try() { e.evidence.Until = e.now() + uint64(2*time.Second) }

func TestASilentBackendIsLeftOutForLongerEachTime(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		e.suspect()
		for n := range 7 {
			e.suspect() // of connections that began before
			e.pass(time.Duration(e.evidence.Until-e.now()) + 5*time.Second)
			if last := e.lengths; len(last) != n+1 {
				t.Errorf("left out for %v before a connection tried it", last)
			}
			e.try()
			e.pass(4 * time.Second)
		}
		want := []time.Duration{10, 20, 40, 80, 160, 300, 300, 300}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(e.lengths, want) {
			t.Errorf("left out for %v, want %v", e.lengths, want)
		}
	})
}

// Under load, the next connection tries a backend as soon as the last one's time is over. Still one of them is enough.
func TestABackendThatManyTryIsLeftOutForLongerEachTime(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		tries := 0
		e.suspect()
		for range 10 * 60 * 10 {
			if e.pass(100 * time.Millisecond); e.now() >= e.evidence.Until {
				e.try()
				tries++
			}
		}
		want := []time.Duration{10, 20, 40, 80, 160, 300}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(e.lengths, want) || tries != len(want)-1 {
			t.Errorf("left out for %v, want %v; %d connections tried it", e.lengths, want, tries)
		}
	})
}

// A backend that a connection tried in vain, and that this node cannot ask, is asked now and then, not all the time.
func TestABackendThatThisNodeCannotAskIsAskedNowAndThen(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		e.suspect()
		e.pass(time.Duration(e.evidence.Until - e.now()))
		e.unable, e.asked = true, 0
		e.try()
		if e.pass(time.Minute); e.asked < 3 || e.asked > 8 {
			t.Errorf("asked %d times in a minute", e.asked)
		}
		e.unable = false
		if e.pass(20 * time.Second); len(e.lengths) != 2 {
			t.Errorf("left out for %v: it does not answer once it can be asked", e.lengths)
		}
	})
}

// F3: whatever clients do: packets of forged sources, a policy that keeps one of them from the backend.
func TestABackendThatAnswersThisNodeIsNeverLeftOut(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		e.answers = true
		for range 10 {
			e.evidence.Unanswered, e.evidence.Clients = 100, 2
			if e.suspect(); e.evidence.Unanswered != 0 {
				t.Error("the evidence stays")
			}
		}
		if len(e.lengths) > 0 || e.asked != 10 {
			t.Errorf("left out %v, asked %d times", e.lengths, e.asked)
		}
	})
}

func TestABackendComesBack(t *testing.T) {
	for name, ends := range map[string]func(*ejecting){
		"as it answers a connection":                             func(e *ejecting) { e.evidence.Until = 0 },
		"as it answers this node when its time is over":          func(e *ejecting) { e.answers = true; e.pass(11 * time.Second) },
		"as it answers this node, when a connection tried it":    func(e *ejecting) { e.answers = true; e.pass(9 * time.Second); e.try() },
		"as it answers this node a while after its time is over": func(e *ejecting) { e.pass(15 * time.Second); e.answers = true; e.pass(10 * time.Second) },
		"as a person says so":                                    func(e *ejecting) { e.readmit() },
	} {
		t.Run(name, func(t *testing.T) {
			underEjection(t, lb.EjectionOn, func(e *ejecting) {
				e.suspect()
				if len(e.lengths) != 1 {
					t.Fatalf("left out for %v", e.lengths)
				}
				ends(e)
				e.pass(4 * time.Second)
				if e.out || e.evidence.Until != 0 || len(e.lengths) != 1 {
					t.Errorf("left out for %v, until %d", e.lengths, e.evidence.Until)
				}
			})
		})
	}
}

func TestEjectionIsAsTheServiceOrTheFlagSays(t *testing.T) {
	for _, row := range []struct {
		flag, service lb.Ejection
		out           bool
		asked         int
	}{
		{lb.EjectionOn, "", true, 1},
		{lb.EjectionOn, lb.EjectionOff, false, 0},
		{lb.EjectionOn, lb.EjectionObserve, false, 1},
		{lb.EjectionOff, "", false, 0},
		{lb.EjectionOff, lb.EjectionOn, true, 1},
		{lb.EjectionObserve, "", false, 1},
	} {
		underEjection(t, row.flag, func(e *ejecting) {
			e.evidence.Mode = row.service
			for range 3 {
				e.suspect()
			}
			if e.out != row.out || e.asked != row.asked {
				t.Errorf("flag %s, Service %q: left out %v, asked %d times", row.flag, row.service, e.out, e.asked)
			}
		})
	}
}

func TestABackendThatIsLeftOutComesBackWithTheMode(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		e.suspect()
		e.evidence.Mode = lb.EjectionObserve
		e.pass(2 * time.Second)
		if e.out {
			t.Error("it is left out")
		}
	})
}

// It is asked again after a while, and not each time that the programs tell of it.
func TestTooFewOthersKeepABackend(t *testing.T) {
	underEjection(t, lb.EjectionOn, func(e *ejecting) {
		e.refuses = true
		e.suspect()
		e.refuses = false
		if e.suspect(); len(e.lengths) != 0 || e.asked != 1 {
			t.Errorf("left out for %v, asked %d times", e.lengths, e.asked)
		}
		e.pass(time.Duration(askAgain))
		if e.suspect(); len(e.lengths) != 1 {
			t.Errorf("left out for %v", e.lengths)
		}
	})
}

// F3: the node's own question takes a while, and its own troubles are nobody's silence.
func TestABackendStaysThatAnswersSomebodyWhileItIsAsked(t *testing.T) {
	for name, row := range map[string]struct {
		unable bool
		during func(*ejecting)
	}{
		"a client is answered":       {false, func(e *ejecting) { e.evidence.Answered++ }},
		"a person takes it back":     {false, func(e *ejecting) { e.readmit() }},
		"the node cannot ask anyone": {true, func(*ejecting) {}},
	} {
		underEjection(t, lb.EjectionOn, func(e *ejecting) {
			e.unable, e.during = row.unable, func() { row.during(e) }
			if e.suspect(); len(e.lengths) != 0 || e.asked != 1 {
				t.Errorf("%s: left out for %v, asked %d times", name, e.lengths, e.asked)
			}
		})
	}
}

func TestSoManyBackendsAreAskedInASecond(t *testing.T) {
	var p pace
	taken := 0
	for i := range uint64(30) {
		for range 10 {
			if p.take(i*uint64(time.Second)/10, 64) {
				taken++
			}
		}
	}
	if taken != 3*64 {
		t.Errorf("%d in three seconds", taken)
	}
}

func TestWhoAnswersThisNode(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	answers := func(what string) {
		t.Helper()
		var got reply
		if lab.Await(patience, func() bool { got = heardFrom(t.Context(), at); return got == replyAnswered }) != nil { // the machine may stand still for longer than it waits
			t.Error(what, got)
		}
	}
	answers("a server that listens:")
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	answers("a closed port:")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if got := heardFrom(over, at); got == replyAnswered {
		t.Error("nobody was asked:", got)
	}
}
