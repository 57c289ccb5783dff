// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/metrics"
)

// rack is a node's backends as tables have them, each of another Service; the first id is 1.
type rack struct {
	mu      sync.Mutex
	until   []uint64
	refuses map[uint32]bool // too few others are left
	times   map[uint32]int
	modes   map[uint32]lb.Ejection
	back    []maps.Readmission
}

func (r *rack) evidence(id uint32) maps.Evidence {
	return maps.Evidence{
		Suspect: maps.Suspect{ID: id, Generation: 1}, Until: r.until[id-1], Times: r.times[id], Node: "n2", Mode: r.modes[id],
		Port:    lb.PortName{Service: lb.ServiceName{Namespace: "d", Name: fmt.Sprint("web-", id)}, Protocol: lb.TCP},
		Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(id >> 8), byte(id)}), 80),
	}
}

func (r *rack) all(are func(maps.Evidence) bool) (found []maps.Evidence) {
	for i := range r.until {
		if e := r.evidence(uint32(i + 1)); are(e) {
			found = append(found, e)
		}
	}
	return found
}

func (r *rack) Evidence(s maps.Suspect) (maps.Evidence, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.evidence(s.ID), true
}

func (r *rack) Doubtful(maps.Suspect) (string, []maps.Evidence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all(func(e maps.Evidence) bool { return e.Until != 0 })) < 2 {
		return "", nil
	}
	return "n2", r.all(func(e maps.Evidence) bool { return e.Until == 0 })
}

func (r *rack) Eject(s maps.Suspect, until uint64, times int) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuses[s.ID] {
		return "half of them have to stay", nil
	}
	r.until[s.ID-1] = until
	if r.times != nil {
		r.times[s.ID] = times
	}
	return "", nil
}

func (r *rack) Readmit(s maps.Suspect) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.until[s.ID-1] != 0
	r.until[s.ID-1] = 0
	return was
}

func (r *rack) Ejected() []maps.Evidence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all(func(e maps.Evidence) bool { return e.Until != 0 })
}

func (r *rack) OnNodes(names ...string) map[string][]maps.Evidence {
	r.mu.Lock()
	defer r.mu.Unlock()
	return map[string][]maps.Evidence{"n2": r.all(func(maps.Evidence) bool { return slices.Contains(names, "n2") })}
}

func (r *rack) Readmitted() (back []maps.Readmission) {
	r.mu.Lock()
	defer r.mu.Unlock()
	back, r.back = r.back, nil
	return back
}

// nodeOutcome runs an ejector over a rack of 110 backends: clients tell of the first, then of the second. alive answers this node's questions, 0:
// none. It gives those that are left out in the end, and how often alive was asked.
func nodeOutcome(t *testing.T, alive uint32) (out []maps.Evidence, times int) {
	t.Helper()
	start := time.Now()
	r := &rack{until: make([]uint64, 110), refuses: map[uint32]bool{7: true}}
	told := make(chan maps.Suspect)
	e := newEjector(r, lb.EjectionOn, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
	e.now = func() uint64 { return uint64(time.Hour + time.Since(start)) }
	e.hear = func(_ context.Context, at netip.AddrPort) reply {
		time.Sleep(answerTime)
		r.mu.Lock()
		defer r.mu.Unlock()
		if alive > 0 && at == r.evidence(alive).Address {
			times++
			return replyAnswered
		}
		return replySilent
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.run(t.Context(), told)
	}()
	told <- maps.Suspect{ID: 1, Generation: 1}
	time.Sleep(2 * time.Second)
	if out := r.Ejected(); len(out) != 1 {
		t.Fatalf("%d backends are left out after one Service's failed", len(out))
	}
	told <- maps.Suspect{ID: 2, Generation: 1}
	time.Sleep(6 * time.Second)
	out = r.Ejected()
	time.Sleep(2 * answerTime)
	close(told)
	<-ended
	return out, times
}

// Connections failed to backends of two Services of a node: all others there are asked, and where all are silent they are left out, within
// seconds and without a connection lost to them.
func TestANodeWhoseBackendsOfSeveralServicesFailIsAskedForAllOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, _ := nodeOutcome(t, 0)
		if len(out) != 109 || slices.ContainsFunc(out, func(v maps.Evidence) bool { return v.ID == 7 }) {
			t.Errorf("%d of 110 backends are left out, want all but the one that has to stay", len(out))
		}
	})
}

// A node of which one backend answers has power: whom else this node does not hear is left out by what clients say alone, also where it was found
// silent before the one was asked.
func TestANodeOfWhichOneBackendAnswersIsInNoDoubt(t *testing.T) {
	for _, alive := range []uint32{5, 100} {
		synctest.Test(t, func(t *testing.T) {
			out, times := nodeOutcome(t, alive)
			if len(out) != 2 || out[0].ID != 1 || out[1].ID != 2 {
				t.Errorf("%d answers, and %d backends are left out, want those two that clients told of", alive, len(out))
			}
			if times != 1 {
				t.Errorf("the one that answers was asked %d times", times)
			}
		})
	}
}
