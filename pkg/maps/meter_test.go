// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// counting is what a meter looks at: counters and connections as a test writes them.
type counting struct {
	*bench
	t     *testing.T
	meter Meter
	now   time.Time
}

func newCounting(t *testing.T) *counting {
	return &counting{bench: published(t), t: t, meter: Meter{Clients: true}, now: time.Unix(1_700_000_000, 0)}
}

func (c *counting) backend(id uint32, counter bpf.NearlbBackendCounter) {
	c.store.backendCounters.(*memoryCounters[bpf.NearlbBackendCounter]).values[id] = counter
}

func (c *counting) service(id uint32, counter bpf.NearlbServiceCounter) {
	c.store.serviceCounters.(*memoryCounters[bpf.NearlbServiceCounter]).values[id] = counter
}

// flow writes the entry of a TCP connection to Service 1, with its tag.
func (c *counting) flow(place, claims, backend uint32, client string, seen uint32) {
	f := bpf.NearlbFlow{Word: claims<<2 | flowLive, Protocol: 6, Backend: backend, Generation: 1, Service: 1, Seen: seen, Client: address16(netip.MustParseAddr(client))}
	putFlow(c.store, place, f)
	set := place / uint32(flowWays)
	*c.store.tags.word(set/uint32(flowSets), int(set)%flowSets*2) = 1
}

// look is a second after the one before.
func (c *counting) look() Gains {
	c.t.Helper()
	c.now = c.now.Add(time.Second)
	g, err := c.meter.Look(c.Reader(), c.now)
	if err != nil {
		c.t.Fatal(err)
	}
	slices.SortFunc(g.Backends, func(a, b BackendGain) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(g.Clients, func(a, b ClientGain) int { return strings.Compare(a.Client.String(), b.Client.String()) })
	return g
}

const seenEstablished = uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)

func TestAMeterTellsWhatCameBetweenTwoLooks(t *testing.T) {
	c := newCounting(t)
	web := lb.PortName{Service: serviceNumber(1), Port: "http", Protocol: lb.TCP}
	c.service(1, bpf.NearlbServiceCounter{Connections: 100, Dropped: 7})
	c.backend(1, bpf.NearlbBackendCounter{Connections: 60, BytesTo: 1000, BytesFrom: 2000})
	c.backend(2, bpf.NearlbBackendCounter{Connections: 40, BytesTo: 50})
	c.flow(0, 1, 1, "10.244.1.7", seenEstablished)
	first := c.look()
	compare(t, first.Ports, []PortGain{{web, Gain{Open: 1}}})
	compare(t, first.Clients, []ClientGain{{netip.MustParseAddr("10.244.1.7"), Gain{Open: 1}}})
	if own := c.Reader().OwnZone(); own != "z1" {
		t.Errorf("this node's zone %q", own)
	}
	if first.Interval != 0 || first.Zone != "z1" {
		t.Errorf("the first look: %v, zone %q", first.Interval, first.Zone)
	}

	c.service(1, bpf.NearlbServiceCounter{Connections: 103, Rejected: 2, Dropped: 8})
	c.backend(1, bpf.NearlbBackendCounter{Connections: 61, BytesTo: 1100, BytesFrom: 2300})
	c.backend(2, bpf.NearlbBackendCounter{Connections: 42, BytesTo: 80, BytesFrom: 5})
	c.flow(1, 1, 2, "10.244.1.7", seenEstablished)
	c.flow(2, 1, 2, "fd00::8", uint32(bpf.NearlbFlowSeenSEEN_REPLY|bpf.NearlbFlowSeenSEEN_RESET))
	second := c.look()
	of1 := Gain{Connections: 1, Open: 1, BytesTo: 100, BytesFrom: 300}
	of2 := Gain{Connections: 2, Open: 1, BytesTo: 30, BytesFrom: 5, CrossZone: 35, Refused: 1}
	compare(t, second.Backends, []BackendGain{
		{web, hostAddress(1), "n1", "z1", "active", of1}, {web, hostAddress(2), "n2", "z0", "draining", of2},
	})
	compare(t, second.Ports, []PortGain{{web, Gain{Connections: 3, Open: 2, BytesTo: 130, BytesFrom: 305, CrossZone: 35, Refused: 1, Rejected: 2, Dropped: 1}}})
	compare(t, second.Clients, []ClientGain{{netip.MustParseAddr("10.244.1.7"), Gain{Connections: 1, Open: 2}}, {netip.MustParseAddr("fd00::8"), Gain{Connections: 1, Refused: 1}}})
	if second.Interval != time.Second {
		t.Errorf("interval %v", second.Interval)
	}
	third := c.look() // nothing happened
	compare(t, third.Ports, []PortGain{{web, Gain{Open: 2}}})
	compare(t, third.Clients, []ClientGain{{netip.MustParseAddr("10.244.1.7"), Gain{Open: 2}}})
	c.meter.AllBackends = true
	if all := c.look().Backends; len(all) != 3 {
		t.Errorf("of all, idle ones too: %+v", all)
	}
}

// An entry that another connection took is that connection's.
func TestAMeterCountsAConnectionInThePlaceOfAnother(t *testing.T) {
	c := newCounting(t)
	c.flow(0, 1, 1, "10.244.1.7", seenEstablished)
	c.look()
	c.flow(0, 2, 1, "10.244.1.8", seenEstablished)
	compare(t, c.look().Clients, []ClientGain{{netip.MustParseAddr("10.244.1.8"), Gain{Connections: 1, Open: 1}}})
}

// Counters that begin anew are of another Service or endpoint that has the id now.
func TestAMeterTakesCountersThatFellForThoseOfANewOwner(t *testing.T) {
	c := newCounting(t)
	c.service(1, bpf.NearlbServiceCounter{Connections: 100})
	c.backend(1, bpf.NearlbBackendCounter{Connections: 100, BytesTo: 1000})
	c.look()
	c.service(1, bpf.NearlbServiceCounter{Connections: 3})
	c.backend(1, bpf.NearlbBackendCounter{Connections: 3, BytesTo: 20})
	g := c.look()
	if g.Ports[0].Connections != 3 || g.Backends[0].Connections != 3 || g.Backends[0].BytesTo != 20 {
		t.Errorf("%+v", g)
	}
}

// Larger tables have flows in other places: what was open is not new. Ids and counters are the same.
func TestAMeterGoesOnWithLargerTables(t *testing.T) {
	c := newCounting(t)
	c.service(1, bpf.NearlbServiceCounter{Connections: 100})
	c.flow(0, 1, 1, "10.244.1.7", seenEstablished)
	c.look()
	small := c.bench
	sizes := tinySizes()
	sizes.FlowSets *= 2
	c.bench = newTables(t, sizes)
	c.apply(t, small.known[serviceNumber(1)])
	c.service(1, bpf.NearlbServiceCounter{Connections: 101})
	c.flow(5, 9, 1, "10.244.1.7", seenEstablished)
	g := c.look()
	compare(t, g.Clients, []ClientGain{{netip.MustParseAddr("10.244.1.7"), Gain{Open: 1}}})
	if want := (Gain{Connections: 1, Open: 1}); g.Ports[0].Gain != want {
		t.Errorf("got %+v, want %+v", g.Ports[0].Gain, want)
	}
}

// What a look costs at 10,000 Services with 10 backends each, 1,000 of which have packets: nearlb top takes one a second.
func BenchmarkMeter(b *testing.B) {
	privileged.Require(b)
	s := scale{10_000, 10}
	m := privateMaps(b, s.sizes())
	defer m.Close()
	t, err := Open(m)
	if err != nil {
		b.Fatal(err)
	}
	s.publish(b, t, func(Stats) {})
	for _, open := range []uint32{1_000, 10_000, 100_000, 250_000} {
		b.Run(fmt.Sprintf("open=%d", open), func(b *testing.B) {
			for i := range open {
				t.putMetered(i)
			}
			meter := Meter{Clients: true} // as the screen has it
			now := time.Now()
			look := func() {
				now = now.Add(time.Second)
				if _, err := meter.Look(t.Reader(), now); err != nil {
					b.Fatal(err)
				}
			}
			look()
			began := processor()
			for b.Loop() {
				look()
			}
			b.ReportMetric(float64((processor()-began).Microseconds())/1000/float64(b.N), "cpu-ms/look")
		})
	}
}

// putMetered writes the n-th of many connections, all of which have just had a packet.
func (t *Tables) putMetered(n uint32) {
	f := bpf.NearlbFlow{Word: 4 | flowLive, Protocol: 6, Touched: t.store.clock.jiffies(), Backend: 1 + n%1000, Generation: 1, Service: 1 + n%100, Seen: seenEstablished}
	f.Client = address16(netip.AddrFrom4([4]byte{10, 244, byte(n >> 4), byte(n)}))
	place := n * 2
	putFlow(t.store, place, f)
	set := place / uint32(flowWays)
	*t.store.tags.word(set/uint32(flowSets), int(set)%flowSets*2) = 1
}

// Idle ones count, those that are gone do not, whatever the meter shows.
func TestAMeterCountsTheEndpointsOfEachPort(t *testing.T) {
	c := newCounting(t)
	c.look()
	endpoints := c.meter.Endpoints()
	for row, err := range c.Reader().Backends() {
		if err != nil {
			t.Fatal(err)
		}
		name := lb.PortName{Port: row.Port, Protocol: lb.TCP}
		if err := name.Service.UnmarshalText([]byte(row.Service)); err != nil {
			t.Fatal(err)
		}
		count := endpoints[name]
		if count.All--; row.State == "active" {
			count.Ready--
		}
		endpoints[name] = count
	}
	if len(endpoints) == 0 {
		t.Error("no port has endpoints")
	}
	for name, left := range endpoints {
		if left != (EndpointCount{}) {
			t.Errorf("%v: %+v beside the rows", name, left)
		}
	}
}
