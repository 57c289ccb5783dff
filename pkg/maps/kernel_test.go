// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"errors"
	"maps"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
	"pgregory.net/rapid"
)

// kernelBench publishes to tables of the kernel that belong to the test alone.
func kernelBench(t fataler, m *bpf.NearlbMaps) *bench {
	t.Helper()
	s, err := kernelStore(m, false)
	if err != nil {
		t.Fatal(err)
	}
	return newBench(t, s)
}

func privateMaps(t fataler, sizes bpf.Sizes) *bpf.NearlbMaps {
	t.Helper()
	m, err := bpf.NewMaps(sizes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The kernel's tables and the fake end up saying the same, before and after a restart, and a restart writes nothing.
func TestTheKernelsTablesBehaveAsTheFake(t *testing.T) {
	privileged.Require(t)
	rapid.Check(t, func(t *rapid.T) {
		m := privateMaps(t, tinySizes())
		defer m.Close()
		b, fake := kernelBench(t, m), newBench(t, memoryStore(tinySizes()))
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			step := drawStep(t, decisions)
			if err := errors.Join(step(b), step(fake)); err != nil {
				t.Fatal(err)
			}
		}
		b.later()
		want := text(t, fake.Tables)
		if got := text(t, b.Tables); got != want {
			t.Fatalf("kernel:\n%s\nfake:\n%s", got, want)
		}
		if got := present(allAnswers(b.store)); !maps.Equal(got, answers(decisions)) {
			t.Fatalf("answers %v, want %v", got, answers(decisions))
		}
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		restarted := kernelBench(t, m)
		defer restarted.Close()
		if writes := reapply(t, restarted, decisions); writes != 0 {
			t.Fatalf("a restart wrote %d entries", writes)
		}
		if drift, err := restarted.Audit(true); err != nil || len(drift) > 0 {
			t.Fatalf("drift %v (%v)", drift, err)
		}
		if got := text(t, restarted.Tables); got != want {
			t.Fatalf("after a restart:\n%s\nbefore:\n%s", got, want)
		}
	})
}

func TestPinnedTablesOutliveTheirPublisher(t *testing.T) {
	path := privileged.Bpffs(t)
	publish := func() Stats {
		objects, err := bpf.Load(bpf.Options{Sizes: tinySizes(), PinPath: path})
		if err != nil {
			t.Fatal(err)
		}
		defer objects.Close()
		tables, err := Open(&objects.NearlbMaps)
		if err != nil {
			t.Fatal(err)
		}
		defer tables.Close()
		stats, err := tables.Apply(made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Draining, near: lb.TierZone}, ep{host: 3, state: lb.Quiet, near: lb.TierZone}))
		if err != nil {
			t.Fatal(err)
		}
		return stats
	}
	publish()
	before := pinnedDump(t, path)
	if stats := publish(); stats.Total() != 0 {
		t.Errorf("the second publisher wrote %+v", stats)
	}
	if after := pinnedDump(t, path); after != before || before == "" {
		t.Errorf("dump was\n%s\nis\n%s", before, after)
	}
}

// pinnedDump reads as the command line does.
func pinnedDump(t *testing.T, path string) string {
	t.Helper()
	m, err := bpf.OpenMaps(path, true)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	reader, err := NewReader(m)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var out bytes.Buffer
	if err := reader.Dump(&out); err != nil {
		t.Fatal(err)
	}
	for row, err := range reader.Fill() {
		if err != nil || row.Limit == 0 {
			t.Errorf("fill %+v: %v", row, err)
		}
	}
	return out.String()
}

// Promise 2 with a reader on another processor: backends are replaced whole, again and again, and no look finds a mixture.
func TestAReaderOnAnotherProcessorSeesWholeSetsOnly(t *testing.T) {
	privileged.Require(t)
	m := privateMaps(t, bpf.Sizes{Frontends: 16, Records: 1024, Slots: 1 << 16, Backends: 64, FlowSets: 4, Affinity: 16, Fragments: 16,
		SourceRanges: 16, Services: 16, Names: 64})
	defer m.Close()
	b := kernelBench(t, m)
	defer b.Close()
	sets := []lb.Decision{made(1, active(0, 1, 2, 3)...), made(1, active(4, 5)...), made(1, active(2, 4, 6)...)}
	allowed := map[string]bool{}
	for _, d := range sets {
		allowed[answers(map[lb.ServiceName]lb.Decision{d.Service: d})[keyOf(d.Frontends[0].Key)]] = true
	}
	b.apply(t, sets[0])

	stop := make(chan struct{})
	var readers sync.WaitGroup
	readers.Go(func() { lookUntil(t, b.store, keyOf(sets[0].Frontends[0].Key), allowed, stop) })
	for i := range 400 {
		b.apply(t, sets[i%len(sets)])
	}
	close(stop)
	readers.Wait()
}

// lookUntil looks as a program does: an answer counts if its record was in force all the while.
func lookUntil(t *testing.T, s *store, key frontendKey, allowed map[string]bool, stop <-chan struct{}) {
	seen := map[string]int{}
	for {
		select {
		case <-stop:
			t.Logf("answers seen: %v", seen)
			return
		default:
		}
		before, _, _ := s.frontends.get(key)
		answer := look(s, key)
		if after, _, _ := s.frontends.get(key); after != before {
			continue
		}
		if seen[answer]++; !allowed[answer] {
			t.Errorf("answer %q", answer)
			return
		}
	}
}

func TestEveryTableOfTheKernelSaysWhenItIsFull(t *testing.T) {
	privileged.Require(t)
	sizes := tinySizes()
	sizes.Frontends = 4
	m := privateMaps(t, sizes)
	defer m.Close()
	b := kernelBench(t, m)
	defer b.Close()
	b.apply(t, made(1, active(1)...))
	b.apply(t, made(2, active(2)...))
	_, err := b.Apply(made(3, active(3)...))
	if full, ok := asFull(err); !ok || full.Table != bpf.NearlbMapFrontends {
		t.Errorf("error %v, want a full table", err)
	}
	if err := b.store.frontends.put(frontendKey{Port: 7}, 1); !errors.Is(err, errFull) {
		t.Errorf("the kernel's own answer: %v", err)
	}
}
