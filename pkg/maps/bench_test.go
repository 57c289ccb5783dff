// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// A19: one endpoint of a service comes and goes. The slots of its tier are worked out and written once each time.
func BenchmarkOneEndpointChanges(b *testing.B) {
	for _, n := range []int{3, 100, 5000} {
		b.Run(fmt.Sprint("fake/", n), func(b *testing.B) { benchmarkChange(b, large(b), n) })
		b.Run(fmt.Sprint("kernel/", n), func(b *testing.B) {
			privileged.Require(b)
			m := privateMaps(b, bpf.Sizes{})
			defer m.Close()
			tables := kernelBench(b, m)
			defer tables.Close()
			tables.tableSize = decide.TableSize
			benchmarkChange(b, tables, n)
		})
	}
}

func benchmarkChange(b *testing.B, tables *bench, n int) {
	both := []lb.Decision{made(1, active(hosts(0, n)...)...), made(1, active(hosts(1, n)...)...)}
	tables.apply(b, both[0])
	i := 0
	for b.Loop() {
		i++
		tables.apply(b, both[i%2])
		if i%4 == 0 {
			b.StopTimer()
			tables.later()
			b.StartTimer()
		}
	}
}

// A19: a decision of 5,000 endpoints that says nothing new.
func BenchmarkNothingChanges(b *testing.B) {
	tables := large(b)
	d := made(1, active(hosts(0, 5000)...)...)
	tables.apply(b, d)
	for b.Loop() {
		tables.apply(b, d)
	}
}

// A restart over the tables of a large cluster: reading them, and finding every decision published already.
func BenchmarkRestart(b *testing.B) {
	tables := large(b)
	decisions := []lb.Decision{made(0, active(hosts(0, 5000)...)...)}
	for n := 1; n <= 20; n++ {
		decisions = append(decisions, made(n, active(hosts(50*n, 40)...)...))
	}
	for _, d := range decisions {
		tables.apply(b, d)
	}
	for b.Loop() {
		again := newBench(b, tables.store)
		again.tableSize = decide.TableSize
		for _, d := range decisions {
			if stats := again.apply(b, d); stats.Total() > 0 {
				b.Fatalf("wrote %+v", stats)
			}
		}
	}
}
