// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/maps"
)

// counted is the state of one backend's counters: the connections are a tenth of the bytes to it, those from it twice as many.
func counted(id uint32, generation uint16, zone string, to uint64) maps.TrafficRow {
	return maps.TrafficRow{ID: id, Generation: generation, Zone: zone, Connections: to / 10, BytesTo: to, BytesFrom: 2 * to}
}

// B18: what crossed a zone is known, and never less than before.
func TestBytesBetweenZonesAddUpWhateverBecomesOfBackendIds(t *testing.T) {
	tables := &fake{}
	zone := "a"
	m := New("v1")
	reads := reading(tables)
	reads.Zone = func() string { return zone }
	m.Read(reads)
	want := func(when string, to map[string]uint64, now ...maps.TrafficRow) {
		t.Helper()
		tables.traffic = now
		if err := m.Look(); err != nil {
			t.Fatal(err)
		}
		text := scrape(t, m)
		for pair, bytes := range to {
			client, backend, _ := strings.Cut(pair, " ")
			labels := fmt.Sprintf(`backend_zone=%q,client_zone=%q`, backend, client)
			for _, line := range []string{
				fmt.Sprintf("nearlb_zone_bytes_total{%s,direction=\"to_backend\"} %d\n", labels, bytes),
				fmt.Sprintf("nearlb_zone_bytes_total{%s,direction=\"from_backend\"} %d\n", labels, 2*bytes),
				fmt.Sprintf("nearlb_zone_connections_total{%s} %d\n", labels, bytes/10),
			} {
				if !strings.Contains(text, line) {
					t.Errorf("%s: no %q in\n%s", when, line, text)
				}
			}
		}
		if n := strings.Count(text, "\nnearlb_zone_connections_total{"); n != len(to) {
			t.Errorf("%s: %d pairs of zones, want %d", when, n, len(to))
		}
	}
	want("at the start, what earlier agents saw", map[string]uint64{"a a": 0, "a b": 0}, counted(1, 1, "a", 500), counted(2, 1, "b", 700))
	want("traffic", map[string]uint64{"a a": 100, "a b": 0}, counted(1, 1, "a", 600), counted(2, 1, "b", 700))
	want("a new backend", map[string]uint64{"a a": 140, "a b": 0}, counted(1, 1, "a", 600), counted(2, 1, "b", 700), counted(3, 1, "a", 40))
	want("one in another zone", map[string]uint64{"a a": 140, "a b": 50}, counted(1, 1, "a", 600), counted(2, 1, "b", 750), counted(3, 1, "a", 40))
	want("an id that was freed", map[string]uint64{"a a": 140, "a b": 50}, counted(1, 1, "a", 600), counted(3, 1, "a", 40))
	want("and is another's", map[string]uint64{"a a": 140, "a b": 50, "a unknown": 30}, counted(1, 1, "a", 600), counted(2, 2, "", 30), counted(3, 1, "a", 40))
	want("at once another's", map[string]uint64{"a a": 140, "a b": 860, "a unknown": 30}, counted(1, 2, "b", 810), counted(2, 2, "", 30), counted(3, 1, "a", 40))
	zone = "b"
	want("when the node moved", map[string]uint64{"a a": 140, "a b": 860, "a unknown": 30, "b a": 0, "b b": 10, "b unknown": 0},
		counted(1, 2, "b", 820), counted(2, 2, "", 30), counted(3, 1, "a", 40))
}

func ledgerOf(tables *fake, zone string) *ledger {
	return newLedger(tables, func() string { return zone }, DefaultLimits())
}

func TestABackendThatCannotBeReadIsNotNewTheNextTime(t *testing.T) {
	tables := &fake{traffic: []maps.TrafficRow{counted(1, 1, "a", 1000), counted(2, 1, "a", 2000)}}
	l := ledgerOf(tables, "a")
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	tables.traffic, tables.err = tables.traffic[:1], errors.New("no")
	if err := l.look(); err == nil {
		t.Error("no error")
	}
	tables.traffic, tables.err = []maps.TrafficRow{counted(1, 1, "a", 1000), counted(2, 1, "a", 2010)}, nil
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	for pair, sum := range l.zones.sums {
		if *sum != (traffic{connections: 1, bytesTo: 10, bytesFrom: 20}) {
			t.Errorf("%v has %+v", pair, sum)
		}
	}
}

func TestZonesWithoutNumberHaveALabelTogether(t *testing.T) {
	tables := &fake{}
	l := ledgerOf(tables, "")
	z := &l.zones
	for id := range uint32(2 * zoneLimit) {
		tables.traffic = append(tables.traffic, counted(id+1, 1, fmt.Sprint("zone", id), 0))
	}
	_ = l.look()
	for i := range tables.traffic {
		tables.traffic[i].BytesTo += 1
	}
	if err := l.look(); err != nil {
		t.Fatal(err)
	}
	if rest := z.sums[zonePair{zoneUnknown, other}]; len(z.sums) != zoneLimit+1 || rest == nil || rest.bytesTo != zoneLimit {
		t.Errorf("%d pairs of zones, %+v in the others", len(z.sums), rest)
	}
}
