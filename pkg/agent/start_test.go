// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/privileged"
)

// eager is a source that lists at once, when it is asked to, and has Services of an earlier agent judged by its guard.
type eager struct {
	*scripted
	began     chan struct{} // closed: it reads objects
	beganOnce sync.Once
	guard     watch.Guard
	published map[lb.ServiceName]bool // as the guard gave them
	told      chan string
}

func (s *eager) Guard(g watch.Guard) { s.guard = g }

func (s *eager) Run(ctx context.Context, ev watch.Events) error {
	s.beganOnce.Do(func() { close(s.began) })
	s.published = s.guard.Published()
	ev.Synced()
	ev.NodeChanged()
	<-ctx.Done()
	return nil
}

// Node is asked as the host is looked at, late in the start: the source reads objects by then.
func (s *eager) Node() lb.Node {
	select {
	case <-s.began:
	case <-time.After(patience):
		s.told <- "the start is nearly over, and nothing is read yet"
	}
	return s.scripted.Node()
}

// The first list is read as the tables are restored, and what it lacks is judged by what these hold.
func TestObjectsAreReadWhileTablesAreRestored(t *testing.T) {
	o := DefaultOptions()
	o.NodeName, o.PinPath, o.LockDir, o.Cgroup = "n1", privileged.Bpffs(t), t.TempDir(), privileged.Cgroup(t)
	o.HealthAddress, o.MetricsAddress = "", ""
	o.Sizes = bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, FlowSets: 64, Affinity: 4096, Fragments: 4096, SourceRanges: 64, Services: 64, Names: 256}
	privileged.Namespace(t, func(*os.File) {
		for round := range 2 {
			s := &eager{scripted: newScripted(), began: make(chan struct{}), told: make(chan string, 100)}
			s.set(1, 2)
			s.set(2, 0)
			want := map[lb.ServiceName]bool{}
			if round > 0 {
				want = map[lb.ServiceName]bool{serviceName(1): true, serviceName(2): false}
			}
			ctx, cancel := context.WithCancel(t.Context())
			go endWhenServing(ctx, cancel, o, 2)
			with := o
			with.Source = s
			if err := Run(ctx, with); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, s.published); diff != "" {
				t.Errorf("start %d: what an earlier agent published (-want +got):\n%s", round, diff)
			}
			close(s.told)
			for problem := range s.told {
				t.Errorf("start %d: %s", round, problem)
			}
		}
	})
}

// endWhenServing ends an agent once it has published so many Services.
func endWhenServing(ctx context.Context, end func(), o Options, services int) {
	defer end()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		if s, err := ReadStatus(o.LockDir, o.PinPath); err == nil && s.State == Serving && s.Services == services && s.Dirty == 0 {
			return
		}
	}
}

// A start that fails ends the source as well, and is told.
func TestAStartThatFailsEndsTheSource(t *testing.T) {
	broken := errors.New("broken")
	o := DefaultOptions()
	o.NodeName, o.PinPath, o.LockDir = "n1", privileged.Bpffs(t), t.TempDir()
	s := &eager{scripted: newScripted(), began: make(chan struct{}), told: make(chan string, 100)}
	o.Source = s
	o.Load = func(bpf.Options) (*bpf.Objects, error) { return nil, broken }
	privileged.Namespace(t, func(*os.File) {
		if err := Run(t.Context(), o); !errors.Is(err, broken) {
			t.Errorf("the agent ended by %v, want %v", err, broken)
		}
	})
}

// Before there is a loop nobody wants news: the first one is told that everything was read.
func TestALoopThatComesAfterTheFirstListLooksAtEverything(t *testing.T) {
	var r relay
	r.ServiceChanged(serviceName(1))
	r.NodeChanged()
	r.Synced()
	h := &newsOf{}
	r.turn(h)
	r.ServiceChanged(serviceName(2))
	r.NodeChanged()
	if want := []string{"synced", "default/s2", "node"}; !slices.Equal(h.all, want) {
		t.Errorf("told %v, want %v", h.all, want)
	}
}

type newsOf struct{ all []string }

func (h *newsOf) ServiceChanged(name lb.ServiceName) { h.all = append(h.all, name.String()) }
func (h *newsOf) NodeChanged()                       { h.all = append(h.all, "node") }
func (h *newsOf) Synced()                            { h.all = append(h.all, "synced") }
