// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// heldForNames is what a source of an API server's objects holds, what it holds more where names are wanted, and what a view of these
// names holds beside it, all in bytes; and how long the view took.
type heldForNames struct {
	packets, source, view float64
	took                  time.Duration
}

func measureNames(tb testing.TB, services, endpoints int) (out heldForNames) {
	tb.Helper()
	server := httptest.NewServer(bigServer(services, endpoints, 500))
	defer server.Close()
	follow := func(cfg NodeConfig, use func(Source)) {
		ctx, cancel := context.WithCancel(tb.Context())
		client, err := clientset.For(tuned(&rest.Config{Host: server.URL, QPS: -1}))
		if err != nil {
			tb.Fatal(err)
		}
		source := Kubernetes(client, cfg, slog.New(slog.DiscardHandler))
		end := newRecorder()
		done := make(chan error, 1)
		go func() { done <- source.Run(ctx, end) }()
		for end.synced() == 0 {
			<-end.wake
		}
		if n := len(source.Services()); n != services {
			tb.Fatalf("%d Services", n)
		}
		use(source)
		cancel()
		<-done
	}
	before := heap()
	follow(NodeConfig{Name: "node-1.example.internal"}, func(Source) { out.packets = heap() - before })
	view := dns.NewView(dns.ViewOptions{Node: lb.Node{Name: "node-1.example.internal"}})
	before = heap()
	follow(NodeConfig{Name: "node-1.example.internal", Names: view}, func(source Source) {
		out.source = heap() - before - out.packets
		before, began := heap(), time.Now()
		names := source.(NameSource)
		for _, name := range names.NamedServices() {
			view.Set(names.Named(name))
		}
		out.took = time.Since(began)
		out.view = heap() - before
		runtime.KeepAlive(source)
	})
	runtime.KeepAlive(view)
	return out
}

// Names take 80 bytes for each endpoint of Services of ten, and would take ten times as many with records of their own (issue 11: 40 MiB
// for 100,000 endpoints, half of it for garbage).
func TestNamesTakeLittleMemoryBesidePackets(t *testing.T) {
	const services, endpoints, most = 2000, 10, 180
	m := measureNames(t, services, endpoints)
	if each := (m.source + m.view) * (1 << 20) / (services * endpoints); each > most {
		t.Errorf("names take %.0f bytes for each endpoint (source %.2f MiB, view %.2f MiB), want %d at most", each, m.source, m.view, most)
	}
}

// What packets and names read alike is kept once.
func TestNamesShareWhatPacketsHave(t *testing.T) {
	withNames(t, false, func(a *api, names NameSource, _ *told) {
		packets := a.source.(*cluster).store
		name := lb.ServiceName{Namespace: "default", Name: "web"}
		slice, named := packets.owned[name][0], names.Named(name)
		if len(slice.endpoints) != 2 || &slice.endpoints[0] != &named.Slices[0].Endpoints[0] {
			t.Error("the endpoints are there twice")
		}
		if service := packets.services[name]; &service.clusterIPs[0] != &named.ClusterIPs[0] {
			t.Error("the ClusterIPs are there twice")
		}
		if names.Named(name) != named {
			t.Error("a Service that did not change is another one")
		}
		hinted := apiSlice("web-a", "web", "10.1.0.1", "10.1.0.2")
		hinted.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}, {Name: "a"}}}
		hinted.Endpoints[1].Hostname = new("own")
		a.setSlice(hinted)
		if slice, named = packets.owned[name][0], names.Named(name); &slice.endpoints[0] != &named.Slices[0].Endpoints[0] || named.Slices[0].Hostname(1) != "own" {
			t.Error("with hints and a hostname the endpoints are there twice")
		}
		second := apiSlice("web-a", "web", "10.1.0.1")
		second.Endpoints[0].Addresses = append(second.Endpoints[0].Addresses, "10.1.0.9") // packets go to the first alone
		a.setSlice(second)
		same(t, "addresses of names", len(names.Named(name).Slices[0].Endpoints), 2)
		same(t, "addresses of packets", len(packets.owned[name][0].endpoints), 1)
	}, apiService("web"), apiSlice("web-a", "web", "10.1.0.1", "10.1.0.2"))
}

// BenchmarkNamesInMemory is what names take of 10,000 Services, and of many with few endpoints.
func BenchmarkNamesInMemory(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10000, 10}, {50000, 5}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			var m heldForNames
			for b.Loop() {
				m = measureNames(b, size.services, size.endpoints)
			}
			b.ReportMetric(m.packets, "MiB-packets")
			b.ReportMetric(m.source, "MiB-names")
			b.ReportMetric(m.view, "MiB-view")
			b.ReportMetric(m.took.Seconds()*1000, "ms-view")
		})
	}
}
