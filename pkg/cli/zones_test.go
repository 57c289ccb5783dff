// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
)

// crossedReasons are all that whyCrossed says.
func crossedReasons() []string {
	all := []string{crossedNoPreference, crossedNoneReady, crossedHinted, crossedBefore, crossedNoZone}
	for _, n := range []lb.Note{lb.NoteNoHints, lb.NoteEndpointWithoutHint, lb.NoteNodeWithoutZone, lb.NoteNoEndpointInZone, lb.NoteNoEndpointOnNode, lb.NoteNoKeyMatched} {
		all = append(all, string(n))
	}
	for _, r := range []lb.Reason{lb.ReasonTerminating, lb.ReasonLocalFallback, lb.ReasonSameRegion, lb.ReasonSameLabel} {
		all = append(all, string(r))
	}
	return all
}

func sideTo(reason, note string, zones ...string) maps.SideRow {
	tier := maps.TierRow{Tier: "cluster"}
	for _, z := range zones {
		tier.Backends = append(tier.Backends, maps.TierBackendRow{Zone: z})
	}
	return maps.SideRow{Action: "balance", Reason: reason, Note: note, Tiers: []maps.TierRow{tier}}
}

func TestEachWayOutOfAZoneHasItsReason(t *testing.T) {
	local := sideTo("local", "", "a")
	said := map[string]bool{}
	for _, row := range []struct {
		want    string
		own, to string
		idle    bool
		sides   []maps.SideRow
	}{
		{"no-preference", "a", "b", false, []maps.SideRow{sideTo("all", "", "a", "b")}},
		{"no-preference", "a", "b", true, []maps.SideRow{local, sideTo("all", "", "a", "b")}},
		{"no-hints", "a", "b", false, []maps.SideRow{sideTo("all", "no-hints", "a", "b")}},
		{"endpoint-without-hint", "a", "b", false, []maps.SideRow{sideTo("all", "endpoint-without-hint", "b")}},
		{"no-endpoint-in-zone", "a", "b", false, []maps.SideRow{sideTo("all", "no-endpoint-in-zone", "b")}},
		{"no-endpoint-on-node", "a", "b", false, []maps.SideRow{sideTo("all", "no-endpoint-on-node", "b")}},
		{"no-key-matched", "a", "b", false, []maps.SideRow{sideTo("all", "no-key-matched", "b")}},
		{"none-ready-in-zone", "a", "b", true, []maps.SideRow{sideTo("all", "no-endpoint-in-zone", "b")}},
		{"hinted-from-other-zone", "a", "b", false, []maps.SideRow{sideTo("same-zone", "", "a", "b")}},
		{"same-region", "a", "b", false, []maps.SideRow{sideTo("same-region", "", "b")}},
		{"same-label", "a", "b", false, []maps.SideRow{sideTo("same-label", "", "b")}},
		{"terminating", "a", "b", true, []maps.SideRow{sideTo("terminating", "", "b")}},
		{"local-fallback", "a", "b", false, []maps.SideRow{sideTo("local-fallback", "", "b")}},
		{"no-longer", "a", "b", false, []maps.SideRow{local, sideTo("same-zone", "", "a")}},
		{"no-longer", "a", "b", false, nil},
		{"node-without-zone", "", "b", false, []maps.SideRow{sideTo("all", "no-hints", "b")}},
		{"endpoint-without-zone", "a", "", false, []maps.SideRow{sideTo("all", "", "a", "")}},
	} {
		got := whyCrossed(row.own, row.to, row.sides, row.idle)
		if got != row.want {
			t.Errorf("%s: got %s", row.want, got)
		}
		said[got] = true
		if text := crossedText(got, plan.Node{Name: "n1", Zone: "a"}); text == got {
			t.Errorf("%s has no text", got)
		}
	}
	for _, reason := range crossedReasons() {
		if !said[reason] {
			t.Errorf("nothing crosses because of %s", reason)
		}
	}
}

// counted are two Services: one crosses, one does not.
func countedZones() *zonesSeen {
	z := &zonesSeen{node: "n1", zone: "a"}
	all := newPlaces(z)
	web := lb.PortName{Service: lb.ServiceName{Namespace: "prod", Name: "web"}, Port: "http", Protocol: lb.TCP}
	near := lb.PortName{Service: lb.ServiceName{Namespace: "prod", Name: "near"}, Port: "http", Protocol: lb.TCP}
	all.add(near, &maps.TrafficRow{Zone: "a", Active: true, Connections: 9, BytesTo: 5e9})
	all.add(web, &maps.TrafficRow{Zone: "a", Active: true, Connections: 1, BytesTo: 100, BytesFrom: 900})
	all.add(web, &maps.TrafficRow{Zone: "b", Active: true, Connections: 2, BytesTo: 100, BytesFrom: 1400})
	all.add(web, &maps.TrafficRow{Zone: "b", Active: true, Connections: 2, BytesTo: 100, BytesFrom: 1400})
	z.rows = all.sorted()
	for i := range z.rows {
		if r := &z.rows[i]; r.Way != waySame {
			r.Reason = crossedNoPreference
			r.Next = crossingNext(r.Reason, r.port.Service, z)
			r.With = []zoneSetting{{"as-it-is", "balance", "all", 0.5, 0}, {"PreferSameZone", "balance", "same-zone", 0, 0}}
		}
	}
	return z
}

func TestATableOfZonesFitsATerminal(t *testing.T) {
	var out bytes.Buffer
	if err := countedZones().print(&out, 80, command.FormatTable, true); err != nil {
		t.Fatal(err)
	}
	golden(t, "zones_80.txt", out.Bytes())
}

func TestBytesOfZonesAddUp(t *testing.T) {
	z := countedZones()
	if got := z.pairs(); len(got) != 2 || got[0].backend != "a" || got[0].bytes != 5e9+1000 || got[1].bytes != 3000 || got[1].connections != 4 {
		t.Errorf("pairs %+v", got)
	}
	some, all := z.services(false), z.services(true)
	if len(some) != 1 || some[0].crossed != 3000 || some[0].total != 4000 || len(all) != 2 {
		t.Errorf("services %+v, all %+v", some, all)
	}
	if !slices.IsSortedFunc(z.rows[:2], func(a, b zoneRow) int { return strings.Compare(b.Service, a.Service) }) || z.rows[0].Service != "prod/web" {
		t.Errorf("rows %+v", z.rows)
	}
	lacks(t, fields(t, z.rows), []string{"[].node", "[].time", "[].service", "[].client_zone", "[].backend_zone", "[].way", "[].connections", "[].bytes_to",
		"[].bytes_from", "[].reason", "[].next", "[].with", "[].with[].setting", "[].with[].other_zone"})
}
