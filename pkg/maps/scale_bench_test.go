// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
	"golang.org/x/sys/unix"
)

// scale is a cluster of Services alike.
type scale struct{ services, endpoints int }

func (s scale) sizes() bpf.Sizes {
	n := uint32(s.services)
	return bpf.Sizes{Frontends: 4 * n, Records: 4 * n, Slots: roundUp(1100 * n), Backends: roundUp(2 * n * uint32(s.endpoints)),
		Services: 2 * n, Names: 4 * n, FlowSets: 1 << 16}
}

// roundUp gives the next multiple of a line of slots.
func roundUp(n uint32) uint32 { return (n + 63) / 64 * 64 }

// input is Service n, one port, endpoints on a hundred nodes; those from shift on.
func (s scale) input(n, shift int) lb.Input {
	name := lb.ServiceName{Namespace: fmt.Sprintf("namespace-%d", n%50), Name: fmt.Sprintf("service-%d", n)}
	in := lb.Input{Service: lb.Service{
		Name: name, Type: lb.TypeClusterIP, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(n>>16), byte(n >> 8), byte(n)})},
		Ports:      []lb.ServicePort{{Name: "http", Protocol: lb.TCP, Port: 80}},
	}}
	for i := range s.endpoints {
		at := n*(s.endpoints+1) + i + shift
		in.Endpoints = append(in.Endpoints, lb.Endpoint{
			Port: lb.PortKey{Name: "http", Protocol: lb.TCP}, Ready: true, Serving: true, Node: fmt.Sprintf("node-%d", at%100), Zone: fmt.Sprintf("zone-%d", at%3),
			Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(at>>16), byte(at >> 8), byte(at)}), 8080),
		})
	}
	return in
}

func (s scale) decision(n, shift int) lb.Decision {
	return decide.Decide(s.input(n, shift), lb.Node{Name: "node-1", Zone: "zone-1"})
}

func (s scale) publish(b testing.TB, t *Tables, check func(Stats)) (spent time.Duration) {
	for n := range s.services {
		d := s.decision(n, 0)
		began := processor()
		stats, err := t.Apply(d)
		spent += processor() - began
		if err != nil {
			b.Fatal(err)
		}
		check(stats)
	}
	return spent
}

func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// What Services of a large cluster cost, in time of processors: to publish them over empty tables, to find them published, to change one, and to keep.
// Deciding is not counted.
func BenchmarkScale(b *testing.B) {
	for _, s := range []scale{{10_000, 10}, {50_000, 5}} {
		b.Run(fmt.Sprintf("fake/%dx%d", s.services, s.endpoints), func(b *testing.B) {
			store := memoryStore(s.sizes())
			s.measure(b, func() *Tables { return reopen(b, store) })
		})
		b.Run(fmt.Sprintf("kernel/%dx%d", s.services, s.endpoints), func(b *testing.B) {
			privileged.Require(b)
			m := privateMaps(b, s.sizes())
			defer m.Close()
			s.measure(b, func() *Tables {
				t, err := Open(m)
				if err != nil {
					b.Fatal(err)
				}
				return t
			})
		})
	}
}

func reopen(b *testing.B, s *store) *Tables {
	t, err := open(s)
	if err != nil {
		b.Fatal(err)
	}
	return t
}

func (s scale) measure(b *testing.B, open func() *Tables) {
	empty := heap()
	t := open()
	publish := s.publish(b, t, func(Stats) {})
	memory := heap() - empty
	problems, serving := once(func() { t.Problems() }), once(func() { t.Serving() })
	changes, shift := 0, 1
	b.ResetTimer()
	for b.Loop() {
		if _, err := t.Apply(s.decision(changes%s.services, shift)); err != nil {
			b.Fatal(err)
		}
		if changes++; changes%s.services == 0 {
			shift = 1 - shift
		}
	}
	b.StopTimer()
	b.ReportMetric(milliseconds(publish), "publish-ms")
	b.ReportMetric(memory, "MiB")
	b.ReportMetric(milliseconds(problems), "problems-ms")
	b.ReportMetric(milliseconds(serving), "serving-ms")
	s.publish(b, t, func(Stats) {})
	clock := time.Now()
	for range 6 {
		clock = clock.Add(time.Minute)
		b.ReportMetric(milliseconds(once(func() { t.Reclaim(clock) })), "reclaim-ms")
	}
	var again *Tables
	t = nil
	runtime.GC() // none of it while the next is opened
	opening := once(func() { again = open() })
	b.ReportMetric(milliseconds(opening), "open-ms")
	b.ReportMetric(milliseconds(s.publish(b, again, func(stats Stats) {
		if stats.Total() > 0 {
			b.Fatalf("a restart wrote %+v", stats)
		}
	})), "restart-ms")
	runtime.KeepAlive(again)
}

func once(do func()) time.Duration {
	began := processor()
	do()
	return processor() - began
}

// processor is the time that the process has had of all processors: what others do meanwhile does not count.
func processor() time.Duration {
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
