// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
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
}

func (r *rack) evidence(id uint32) maps.Evidence {
	return maps.Evidence{
		Suspect: maps.Suspect{ID: id, Generation: 1}, Until: r.until[id-1],
		Port:    lb.PortName{Service: lb.ServiceName{Namespace: "d", Name: fmt.Sprint("web-", id)}},
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

func (r *rack) Eject(s maps.Suspect, until uint64, _ int) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuses[s.ID] {
		return "half of them have to stay", nil
	}
	r.until[s.ID-1] = until
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

func (r *rack) Readmitted() []maps.Readmission { return nil }

// Connections failed to backends of two Services of a node: all others there are asked, and those that are silent are left out, within seconds
// and without a connection lost to them. Who answers stays.
func TestANodeWhoseBackendsOfSeveralServicesFailIsAskedForAllOfThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := &rack{until: make([]uint64, 110), refuses: map[uint32]bool{7: true}}
		alive := r.evidence(5).Address
		told := make(chan maps.Suspect)
		times := 0 // that the one was asked that answers
		e := newEjector(r, lb.EjectionOn, slog.New(slog.DiscardHandler), nil, metrics.New("test"))
		e.now = func() uint64 { return uint64(time.Hour + time.Since(start)) }
		e.hear = func(_ context.Context, at netip.AddrPort) reply {
			time.Sleep(answerTime)
			r.mu.Lock()
			defer r.mu.Unlock()
			if at == alive {
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
		out := r.Ejected()
		if len(out) != len(r.until)-2 {
			t.Errorf("%d of %d backends are left out", len(out), len(r.until))
		}
		for _, v := range out {
			if v.ID == 5 || v.ID == 7 {
				t.Errorf("backend %d is left out", v.ID)
			}
		}
		if r.mu.Lock(); times != 1 {
			t.Errorf("the one that answers was asked %d times", times)
		}
		r.mu.Unlock()
		time.Sleep(2 * answerTime)
		close(told)
		<-ended
	})
}
