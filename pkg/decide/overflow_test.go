// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// zonal is a cluster whose clients, by their zones' processors, all talk to one Service.
type zonal struct {
	margin uint16
	zones  []lb.Zone
	backs  map[string]int // endpoints of each zone; "": of none that is known
}

func (z zonal) input() lb.Input {
	svc := web()
	svc.Overflow = lb.Overflow{Percent: z.margin, Given: true}
	in := lb.Input{Service: svc, Zones: z.zones}
	for i, name := range []string{"", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		for k := range z.backs[name] {
			in.Endpoints = append(in.Endpoints, lb.Endpoint{
				Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Ready: true, Serving: true, Zone: name, Slice: "web-a",
				Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), byte(k + 1)}), 8080),
			})
		}
	}
	return in
}

// loads adds up what each endpoint gets, in parts of all connections, and what of them leaves its zone for another that is known.
func (z zonal) loads(t failing) (perZone map[string]float64, left float64) {
	t.Helper()
	in, all := z.input(), 0.0
	for _, zone := range z.zones {
		all += float64(zone.Processors)
	}
	perZone = map[string]float64{}
	for _, zone := range z.zones {
		d := decide.Serve(in, lb.Node{Name: "n-" + zone.Name, Zone: zone.Name})
		side := d.Frontends[0].Internal
		weights, sum := map[lb.BackendKey]float64{}, 0.0
		for _, b := range d.Backends {
			weights[b.Key] = max(1, float64(b.Weight))
		}
		for _, key := range side.Tiers[0].Backends {
			sum += weights[key]
		}
		for _, b := range d.Backends {
			for _, key := range side.Tiers[0].Backends {
				if key != b.Key {
					continue
				}
				part := weights[key] / sum * float64(zone.Processors) / all
				perZone[b.Zone] += part
				if zone.Name != "" && zone.Name != b.Zone {
					left += part
				}
			}
		}
	}
	return perZone, left
}

// F5: nine of ten zones have their part of the endpoints, one has half of it: its endpoints get 1.2 times the fair part with an overflow of
// 20 %, and twice as much without.
func TestAnOverflowBoundsWhatAZonesEndpointsGet(t *testing.T) {
	z := zonal{margin: 20, backs: map[string]int{"a": 5}}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		z.zones = append(z.zones, lb.Zone{Name: name, Processors: 64_000})
		if name != "a" {
			z.backs[name] = 10
		}
	}
	fair := 5.0 / 95
	loads, left := z.loads(t)
	if got := loads["a"] / fair; math.Abs(got-1.2) > 0.001 {
		t.Errorf("the zone's endpoints get %.4f of their fair part, want 1.2", got)
	}
	if least := 0.1 - 1.2*fair; math.Abs(left-least) > 0.01*least {
		t.Errorf("%.5f of all connections leave their zone, want %.5f", left, least)
	}
	z.margin = 900
	if loads, left = z.loads(t); math.Abs(loads["a"]/fair-1.9) > 0.001 || left != 0 {
		t.Errorf("with room for all: %.3f of the fair part, %.3f leaves", loads["a"]/fair, left)
	}
}

// F5: whatever the zones are: no endpoint gets more than its fair part and the margin, and no more leaves the zones than has to.
func TestAnOverflowSharesOutWhatIsTooMuchAndNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := zonal{margin: rapid.Uint16Range(0, 100).Draw(t, "margin"), backs: map[string]int{}}
		names := []string{"a", "b", "c", "d", "e"}[:rapid.IntRange(1, 5).Draw(t, "zones")]
		for _, name := range append([]string{""}, names...) {
			n := uint64(rapid.IntRange(0, 20).Draw(t, "nodes"))
			if n > 0 {
				z.zones = append(z.zones, lb.Zone{Name: name, Processors: n * 4000})
			}
			z.backs[name] = rapid.IntRange(0, 12).Draw(t, "endpoints of "+name)
		}
		z.backs["a"]++
		if len(z.zones) == 0 {
			return
		}
		loads, left := z.loads(t)
		endpoints, all, placed := 0.0, 0.0, 0.0
		for _, n := range z.backs {
			endpoints += float64(n)
		}
		for _, zone := range z.zones {
			if all += float64(zone.Processors); zone.Name != "" {
				placed += float64(zone.Processors)
			}
		}
		most := 1 + float64(z.margin)/100
		for zone, load := range loads {
			if fair := float64(z.backs[zone]) / endpoints; load > most*fair*1.006+1e-4 {
				t.Errorf("zone %q gets %.4f of all, %.3f times the fair part, want %.2f at the most", zone, load, load/fair, most)
			}
		}
		least := 0.0
		for _, zone := range z.zones {
			if zone.Name != "" {
				room := float64(z.backs[zone.Name]) / endpoints * (most - 1 + placed/all)
				least += max(0, float64(zone.Processors)/all-room)
			}
		}
		if left > least*1.001+1e-4 || left < least-0.005 {
			t.Errorf("%.4f of all connections leave their zone, want %.4f", left, least)
		}
	})
}

// Where the overflow is not in force the zone keeps what it has, and the side says why where there is a reason.
func TestWhereAnOverflowHasNoEffectTheZoneKeepsItsConnections(t *testing.T) {
	const text = "\n10.1.0.1 ready node=n1 zone=a\n10.1.0.2 ready node=n2 zone=b\n10.1.0.3 ready node=n3 zone=b"
	both := []lb.Zone{{Name: "a", Processors: 1000}, {Name: "b", Processors: 2000}}
	noZone := n1()
	noZone.Zone = ""
	for _, row := range []struct {
		name  string
		node  lb.Node
		zones []lb.Zone
		text  string
		want  string
		note  lb.Note
	}{
		{"as many as its clients need", n1(), both, text, "balance same-zone zone: 10.1.0.1", ""},
		{"nobody knows the Nodes", n1(), nil, text, "balance same-zone zone: 10.1.0.1", ""},
		{"no clients in the zone", n1(), both[1:], text, "balance same-zone zone: 10.1.0.1", ""},
		{"a node without a zone", noZone, both, text, "balance all cluster: 10.1.0.1 10.1.0.2 10.1.0.3", lb.NoteNodeWithoutZone},
		{"none ready", n1(), both, "10.1.0.1 leaving zone=b", "balance terminating cluster: 10.1.0.1", ""},
		{"too many clients", n1(), []lb.Zone{{Name: "a", Processors: 9000}, {Name: "b", Processors: 1000}}, text,
			"balance same-zone zone: 10.1.0.1 10.1.0.2 10.1.0.3", lb.NoteOverflow},
		{"no endpoint in the zone, and one other has room", n1(), both, "10.1.0.2 ready zone=b\n10.1.0.3 ready zone=c", "balance all cluster: 10.1.0.3", lb.NoteNoEndpointInZone},
	} {
		t.Run(row.name, func(t *testing.T) {
			svc := web()
			svc.Overflow = lb.Overflow{Percent: 20, Given: true}
			d := decide.Decide(lb.Input{Service: svc, Endpoints: endpoints(t, row.text), Zones: row.zones}, row.node)
			side := d.Frontends[0].Internal
			equal(t, "side", show(side), row.want)
			equal(t, "note", string(side.Note), string(row.note))
			for _, e := range d.Endpoints {
				if want := row.note == lb.NoteOverflow && e.Zone == "b"; (e.Reason == lb.ReasonOverflow) != want {
					t.Errorf("%v is there for %s", e.Address, e.Reason)
				}
			}
		})
	}
}

// Zones without an endpoint send theirs where there is room: nobody gets more because the last endpoint of a zone has gone.
func TestAZoneThatLosesItsLastEndpointOverloadsNobody(t *testing.T) {
	z := zonal{margin: 20, backs: map[string]int{"b": 3, "c": 9}, zones: []lb.Zone{{Name: "a", Processors: 4000}, {Name: "b", Processors: 4000}, {Name: "c", Processors: 4000}}}
	loads, _ := z.loads(t)
	equal(t, "zones", fmt.Sprintf("%.3f %.3f", loads["b"], loads["c"]), "0.300 0.700")
}
