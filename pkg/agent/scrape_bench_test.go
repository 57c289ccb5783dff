// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// What it costs to tell how it goes, with 10,000 Services of three endpoints each in the kernel's tables of their usual sizes.
func BenchmarkTellingOfTenThousandServices(b *testing.B) {
	o := DefaultOptions()
	o.NodeName, o.PinPath, o.LockDir, o.Cgroup = "n1", privileged.Bpffs(b), b.TempDir(), privileged.Cgroup(b)
	o.Log = slog.New(slog.DiscardHandler)
	source := newScripted()
	for i := range 10_000 {
		in := input(i, 3)
		in.Service.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
		for e := range in.Endpoints {
			in.Endpoints[e].Address = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(128 + e), byte(i >> 8), byte(i)}), 8080)
			in.Endpoints[e].ZoneHints = []string{"a"}
		}
		source.put(in)
	}
	o.Source = source
	privileged.Namespace(b, func(*os.File) {
		d, err := newDaemon(o)
		if err != nil {
			b.Fatal(err)
		}
		r, err := d.start(b.Context(), plan{sizes: d.room.For(needOf(source, lb.Node{}))})
		if err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan error)
		go func() { ended <- r.loop.run(ctx) }()
		r.Synced()
		for r.lastSynced().IsZero() {
			time.Sleep(10 * time.Millisecond)
		}
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
		defer r.close()
		b.Run("scrape", func(b *testing.B) { benchmarkScrape(b, r) })
		b.Run("scrape, all in use", func(b *testing.B) { useAll(b, r); benchmarkScrape(b, r) })
		b.Run("look", func(b *testing.B) {
			for b.Loop() {
				r.looked(r.daemon.metrics.Look())
			}
		})
		b.Run("fill", func(b *testing.B) {
			for b.Loop() {
				r.filled = time.Time{}
				r.tableFill()
			}
		})
		b.Run("status", func(b *testing.B) {
			for b.Loop() {
				r.status()
			}
		})
	})
}

func benchmarkScrape(b *testing.B, r *running) {
	size := 0
	for b.Loop() {
		answer := httptest.NewRecorder()
		r.daemon.metrics.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		size = answer.Body.Len()
	}
	b.ReportMetric(float64(size), "bytes")
}

// useAll has every service port and every backend used once.
func useAll(b *testing.B, r *running) {
	b.Helper()
	processors := 0
	put := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	var each []bpf.NearlbBackendCounter
	put(r.objects.BackendCounters.Lookup(uint32(0), &each))
	processors = len(each)
	for id := range uint32(30_000) {
		counters := make([]bpf.NearlbBackendCounter, processors)
		counters[0] = bpf.NearlbBackendCounter{Connections: 1, BytesTo: 100}
		put(r.objects.BackendCounters.Put(id+1, counters))
		if id < 10_000 {
			services := make([]bpf.NearlbServiceCounter, processors)
			services[0].Connections = 3
			put(r.objects.ServiceCounters.Put(id+1, services))
		}
	}
}
