// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// leftOutOf counts the usable backends of a tier, by its slots, and those of them that programs leave out.
func leftOutOf(s *store, first, count uint32) (usableCount, out int) {
	seen := map[uint32]bool{}
	for i := range count {
		id := s.slots.load(first+i, 0)
		b, h := read[backendRow](s.backends, id), read[healthRow](s.health, id)
		if seen[id] || !usable(b.State) {
			continue
		}
		seen[id] = true
		usableCount++
		if h.Until != 0 && h.Generation == b.Generation {
			out++
		}
	}
	return usableCount, out
}

// F2: never more than half of the usable backends of a tier that a frontend has, so never the last one: whatever is left out, answers, is
// tried, published, removed, and however often the agent begins anew.
// Whoever asks for the status may do so while the agent ends: the tables' memory is gone then.
func TestTablesThatAreClosedHaveNobodyLeftOut(t *testing.T) {
	b := newTables(t, tinySizes())
	b.apply(t, made(1, active(1, 2, 3)...))
	id := b.ids(t)["10.244.0.1:8080 active"]
	row, h := read[backendRow](b.store.backends, id), read[healthRow](b.store.health, id)
	h.Generation, h.Unanswered, h.Clients = row.Generation, 3, 2
	write(b.store.health, id, h, wordUnanswered, wordUnanswered+1)
	if refused, err := b.Eject(Suspect{id, row.Generation}, 1<<62, 1); refused != "" || err != nil {
		t.Fatal(refused, err)
	}
	if n := len(b.Ejected()); n != 1 {
		t.Fatalf("%d left out", n)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b.store.health, b.store.backends = nil, nil // as unmapped memory
	if n := len(b.Ejected()); n != 0 {
		t.Errorf("%d left out of closed tables", n)
	}
}

func TestNeverMoreThanHalfOfATierIsLeftOut(t *testing.T) {
	ejected, silent := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 24).Draw(t, "steps") {
			id := rapid.Uint32Range(1, 24).Draw(t, "backend")
			row := read[backendRow](s.backends, id)
			suspect := Suspect{id, row.Generation}
			switch rapid.SampledFrom([]string{"publish", "eject", "eject", "eject", "silent", "answers", "tries", "readmit", "restart"}).Draw(t, "what") {
			case "publish":
				if err := drawStep(t, decisions)(b); err != nil {
					t.Fatal(err)
				}
			case "eject":
				h := read[healthRow](s.health, id)
				h.Generation, h.Unanswered, h.Clients = row.Generation, 3, 2
				write(s.health, id, h, wordUnanswered, wordUnanswered+1)
				if refused, err := b.Eject(suspect, 1, 1); refused == "" && err == nil {
					ejected++
				}
			case "silent":
				node := rapid.SampledFrom([]string{"n1", "n2", "n3", "n4"}).Draw(t, "node")
				for _, e := range b.OnNodes(node)[node] {
					if refused, err := b.Eject(e.Suspect, 1, 0); refused == "" && err == nil {
						silent++
					}
				}
			case "answers":
				s.setUntil(id, 0)
			case "tries":
				if until := s.until(id); until != 0 {
					s.setUntil(id, until+2)
				}
			case "readmit":
				b.Readmit(suspect)
			case "restart":
				b = newBench(t, s)
			}
			for key, number := range s.frontends.all() {
				for _, side := range read[recordValue](s.records, number).Sides {
					for _, tier := range side.Tiers {
						if usableCount, out := leftOutOf(s, tier.First, tier.Count); 2*out > usableCount {
							t.Fatalf("%s: %d of %d backends are left out", keyText(key), out, usableCount)
						}
					}
				}
			}
		}
	})
	if ejected == 0 || silent == 0 {
		t.Errorf("%d backends were left out, %d because of their node", ejected, silent)
	}
}

func TestABackendThatIsGoneIsLeftOutNoMore(t *testing.T) {
	for name, step := range map[string]func(*bench) error{
		"its endpoint":                   func(b *bench) error { _, err := b.Apply(made(1, weighted(1, 1, 1, 1)[1:]...)); return err },
		"its Service":                    func(b *bench) error { _, err := b.Remove(serviceNumber(1)); return err },
		"all others but one of its tier": func(b *bench) error { _, err := b.Apply(made(1, weighted(1)...)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, memoryStore(tinySizes()))
			if _, err := b.Apply(made(1, weighted(1, 1, 1, 1)...)); err != nil {
				t.Fatal(err)
			}
			suspect := b.suspectOf(t, 0)
			if refused, err := b.Eject(suspect, 1, 1); refused != "" || err != nil {
				t.Fatal(refused, err)
			}
			if out := b.Ejected(); len(out) != 1 || out[0].Suspect != suspect || out[0].Until != 1 || out[0].Times != 1 {
				t.Errorf("left out are %+v", out)
			}
			if err := step(b); err != nil {
				t.Fatal(err)
			}
			back := b.Readmitted()
			if out := b.Ejected(); len(out) != 0 || len(back) != 1 || back[0].Suspect != suspect || back[0].Because == "" {
				t.Errorf("left out are %+v, back in %+v", out, back)
			}
			if b.store.until(suspect.ID) != 0 {
				t.Error("programs leave it out")
			}
		})
	}
}

// suspectOf finds the backend of a host, and has evidence against it.
func (b *bench) suspectOf(t *testing.T, host byte) Suspect {
	t.Helper()
	for id := range b.store.backends.size {
		row := read[backendRow](b.store.backends, id)
		if row.State != stateFree && AddrPortOf(row).Addr().As4()[3] == host {
			h := healthRow{Generation: row.Generation, Unanswered: 3, Clients: 2}
			write(b.store.health, id, h)
			return Suspect{id, row.Generation}
		}
	}
	t.Fatalf("no backend has host %d", host)
	return Suspect{}
}

func TestHalfOfATierMayBeLeftOut(t *testing.T) {
	for backends := range 7 {
		b := newBench(t, memoryStore(tinySizes()))
		weights := make([]uint32, backends)
		for i := range weights {
			weights[i] = 1
		}
		if _, err := b.Apply(made(1, weighted(weights...)...)); err != nil {
			t.Fatal(err)
		}
		for host := range backends {
			refused, err := b.Eject(b.suspectOf(t, byte(host)), 1, 1)
			if err != nil || (refused == "") != (host < backends/2) {
				t.Errorf("the %dth of %d: %q %v", host+1, backends, refused, err)
			}
		}
	}
}

// Several of its tiers lose others at once: it comes back once, and is told of once.
func TestABackendOfSeveralTiersComesBackOnce(t *testing.T) {
	tiers := func(n int, hosts ...[]int) lb.Decision {
		all, side := map[int]bool{}, lb.Side{Action: lb.Balance, Reason: lb.ReasonAll, List: lb.ListCluster}
		for _, some := range hosts {
			for _, host := range some {
				all[host] = true
			}
		}
		d := made(n, active(slices.Sorted(maps.Keys(all))...)...)
		for i, some := range hosts {
			tier := lb.Tier{Name: lb.TierCluster}
			for _, b := range d.Backends {
				if slices.Contains(some, int(b.Key.Address.Addr().As4()[3])) {
					tier.Backends = append(tier.Backends, b.Key)
				}
			}
			side.Tiers = []lb.Tier{tier}
			addFrontend(&d, side, lb.KindExternalIP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 80))
		}
		d.Frontends = d.Frontends[1:] // without that of all
		return d
	}
	for range 30 { // in each order
		b := newBench(t, memoryStore(tinySizes()))
		if _, err := b.Apply(tiers(1, []int{3, 4}, []int{1, 2}, []int{1, 5, 6, 7})); err != nil {
			t.Fatal(err)
		}
		for _, host := range []byte{3, 1, 5} {
			if refused, err := b.Eject(b.suspectOf(t, host), 1, 1); refused != "" || err != nil {
				t.Fatal(refused, err)
			}
		}
		if _, err := b.Apply(tiers(1, []int{3}, []int{1}, []int{1, 5, 6})); err != nil {
			t.Fatal(err)
		}
		told := map[Suspect]int{}
		for _, back := range b.Readmitted() {
			if told[back.Suspect]++; told[back.Suspect] > 1 {
				t.Fatalf("%s is back twice", back.Address)
			}
		}
		if len(told) < 2 {
			t.Errorf("%d are back, want those of the tiers that have no other", len(told))
		}
	}
}

func TestTimesDoubleAndEnd(t *testing.T) {
	for n, want := range map[int]time.Duration{0: 10, 1: 10, 2: 20, 3: 40, 5: 160, 6: 300, 60: 300} {
		if got := EjectionTime(n); got != want*time.Second {
			t.Errorf("time %d: %v", n, got)
		}
	}
	second := uint64(time.Second)
	for _, row := range []struct {
		times int
		now   uint64
		want  int
	}{{0, 1000, 1}, {1, 1011, 2}, {2, 1021, 3}, {1, 1300, 2}, {1, 1311, 1}, {6, 1600, 7}, {6, 1601, 1}} {
		if got := (Evidence{Times: row.times, Since: 1000 * second}).NextTime(row.now * second); got != row.want {
			t.Errorf("after %d times, at %d: time %d, want %d", row.times, row.now, got, row.want)
		}
	}
}

// The node with number 1 has a backend of each Service; those of two of them are left out.
func TestTheOtherBackendsOfANodeAreInDoubtOnceThoseOfSeveralServicesAreLeftOut(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	pods := []int{1, 6, 11} // of the node
	for n := 1; n <= 3; n++ {
		endpoints := weighted(1, 1, 1, 1)
		endpoints[1].host = pods[n-1]
		if _, err := b.Apply(made(n, endpoints...)); err != nil {
			t.Fatal(err)
		}
	}
	of := map[lb.ServiceName]Suspect{}
	for id := range b.store.backends.size {
		if row := read[backendRow](b.store.backends, id); row.State != stateFree && slices.Contains(pods, int(AddrPortOf(row).Addr().As4()[3])) {
			suspect := Suspect{id, row.Generation}
			e, _ := b.Evidence(suspect)
			of[e.Port.Service] = suspect
		}
	}
	for n, want := range []int{0, 1} {
		suspect := of[serviceNumber(n+1)]
		if refused, err := b.Eject(suspect, 1, 1); refused != "" || err != nil {
			t.Fatal(refused, err)
		}
		node, others := b.Doubtful(suspect)
		if len(others) != want || want > 0 && (node != "n1" || others[0].Suspect != of[serviceNumber(3)]) {
			t.Errorf("after %d Services: %q, %+v are in doubt", n+1, node, others)
		}
	}
	b.Readmit(of[serviceNumber(1)])
	if _, others := b.Doubtful(of[serviceNumber(2)]); others != nil {
		t.Errorf("after one was readmitted, %+v are in doubt", others)
	}
}

// Two Services that lead to one pod are one failure.
func TestTwoServicesOfOnePodSayNothingOfItsNode(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	for n := 1; n <= 3; n++ {
		if _, err := b.Apply(made(n, weighted(1, 1, 1, 1)...)); err != nil {
			t.Fatal(err)
		}
	}
	for id := range b.store.backends.size {
		row := read[backendRow](b.store.backends, id)
		suspect := Suspect{id, row.Generation}
		if e, _ := b.Evidence(suspect); row.State == stateFree || AddrPortOf(row).Addr().As4()[3] != 1 || e.Port.Service == serviceNumber(3) {
			continue
		}
		if refused, err := b.Eject(suspect, 1, 1); refused != "" || err != nil {
			t.Fatal(refused, err)
		}
		if _, others := b.Doubtful(suspect); others != nil {
			t.Errorf("%+v are in doubt", others)
		}
	}
}

// A silent node's backends are those that take connections, of each Service, and why they are left out is said until they did something themselves.
func TestTheBackendsOfASilentNodeAreFoundAndSayWhyTheyAreLeftOut(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	for n := 1; n <= 3; n++ {
		if _, err := b.Apply(made(n, weighted(1, 1, 1, 1)...)); err != nil {
			t.Fatal(err)
		}
	}
	used := b.NodesInUse()
	if len(used) == 0 || slices.Contains(used, "") || len(b.OnNodes("none", "")) > 0 || b.NodesLeftOut() != nil {
		t.Fatalf("nodes %q, of none %+v, left out %q", used, b.OnNodes("none"), b.NodesLeftOut())
	}
	for _, node := range used {
		on := b.OnNodes(used...)[node]
		if len(on) == 0 || on[0].Node != node || on[0].ByNode() {
			t.Fatalf("%s: %+v", node, on)
		}
	}
	node := used[0]
	one := b.OnNodes(node)[node][0].Suspect
	for times, byNode := range []bool{true, false} {
		if refused, err := b.Eject(one, 1, times); refused != "" || err != nil {
			t.Fatal(refused, err)
		}
		e := b.OnNodes(node)[node][0]
		if e.ByNode() != byNode || (e.Because() == e.Text()) == byNode || slices.Contains(b.NodesLeftOut(), node) != byNode {
			t.Errorf("left out for the time %d: %+v, %q, of %q", times, e, e.Because(), b.NodesLeftOut())
		}
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if len(b.OnNodes(node)) > 0 || b.NodesLeftOut() != nil {
		t.Error("closed tables tell of a node")
	}
}
