// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/maps"
)

// flooding are gains of 100,000 clients with a connection each, no two the same in any two floods, and of one that has more.
func flooding(number int) *maps.Gains {
	g := gains()
	g.Clients = []maps.ClientGain{{Client: netip.MustParseAddr("10.244.1.9"), Gain: maps.Gain{Connections: 50, Open: 1}}}
	for n := range 100_000 {
		g.Clients = append(g.Clients, maps.ClientGain{Client: netip.AddrFrom4([4]byte{byte(20 + number), byte(n >> 16), byte(n >> 8), byte(n)}), Gain: maps.Gain{Connections: 1}})
	}
	return &g
}

// However many clients come, a screen has so many rows and keeps so many lines; those that it has are the busiest, and the sums are of all.
func TestAFloodOfClientsTakesNoMoreThanAScreen(t *testing.T) {
	screen, press := newScreen()
	press("3")
	for number := range 4 {
		screen.take("n1", flooding(number))
		for view, of := range screen.recent {
			if len(of.rows) > sparkRows {
				t.Fatalf("flood %d: %s keeps lines of %d rows", number, view, len(of.rows))
			}
		}
	}
	lines := screen.frame(160, 20)
	if len(screen.rows) != screenRows || !strings.HasSuffix(strings.TrimSpace(lines[0]), "  1000 of 100001") {
		t.Errorf("%d rows: %q", len(screen.rows), lines[0])
	}
	if !strings.HasPrefix(lines[1], "new/s 50k  open 1  ") {
		t.Errorf("sums of all: %q", lines[1])
	}
	if !strings.HasPrefix(lines[3], "10.244.1.9 ") || !strings.HasSuffix(strings.TrimSpace(lines[3]), " ▁████") {
		t.Errorf("the busiest client: %q", lines[3])
	}
	press("/", "2", "3", ".", "1", ".", "1", "3", "4", ".", "1", "5", "9", "enter")
	if lines := screen.frame(80, 20); !strings.HasPrefix(lines[3], "23.1.134.159 ") || strings.TrimSpace(lines[4]) != "" {
		t.Errorf("one that is in none of the first rows is not found:\n%s", strings.Join(lines, "\n"))
	}
}

// Whoever scrolls comes to the last row, also where names are longer than there is room for.
func TestAScreenScrollsToItsLastRow(t *testing.T) {
	screen, press := newScreen()
	g := gains()
	for n := range 250 {
		long := g.Ports[2]
		long.Port.Service.Name = fmt.Sprintf("%s-of-%03d", strings.Repeat("checkout-", n%7), n)
		g.Ports = append(g.Ports, long)
	}
	screen.take("n1", &g)
	press(slices.Repeat([]string{"j"}, 300)...)
	const height = 20
	last := screen.rows[len(screen.rows)-1].name()
	if lines := screen.frame(80, height); !strings.HasPrefix(lines[height-2], last[:10]) || !strings.Contains(lines[height-2], last[len(last)-10:]+" ") {
		t.Errorf("the last row is not shown last:\n%s", strings.Join(lines, "\n"))
	}
	if want := len(screen.rows) - (height - 4); screen.first != want {
		t.Errorf("row %d is the first, want %d", screen.first, want)
	}
	press("k")
	if lines := screen.frame(80, height); strings.Contains(strings.Join(lines, "\n"), last[len(last)-10:]) {
		t.Error("a row up shows the last row still")
	}
}

func TestTheFirstOfManyAreThoseOfAllInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := make([]int, random.IntN(60))
		for i := range all {
			all[i] = random.IntN(20)
		}
		f := newFirst(1+random.IntN(20), func(a, b *int) int { return cmp.Compare(*a, *b) })
		for _, n := range all {
			f.add(n)
		}
		slices.Sort(all)
		if got, want := f.sorted(), all[:min(len(all), f.most)]; !slices.Equal(got, want) {
			t.Fatalf("the first %d of %v are %v", f.most, all, got)
		}
	}
}
