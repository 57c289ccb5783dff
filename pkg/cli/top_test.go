// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// gains are two seconds of a node in zone a.
func gains() maps.Gains {
	port := func(name, port string, p lb.Protocol) lb.PortName {
		namespace, service, _ := strings.Cut(name, "/")
		return lb.PortName{Service: lb.ServiceName{Namespace: namespace, Name: service}, Port: port, Protocol: p}
	}
	web, dns := port("prod/web", "http", lb.TCP), port("kube-system/kube-dns", "dns", lb.UDP)
	long := port("payments-and-invoices/customer-facing-checkout-frontend", "https", lb.TCP)
	here, there := maps.Gain{Connections: 200, Open: 40, BytesTo: 50_000, BytesFrom: 4_000_000}, maps.Gain{Connections: 3, Open: 2, BytesTo: 900, BytesFrom: 88_000, CrossZone: 88_900, Refused: 5, Unanswered: 2}
	sum := here
	sum.Add(&there)
	sum.Dropped = 9
	return maps.Gains{
		Zone: "a", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Interval: 2 * time.Second,
		Ports: []maps.PortGain{
			{Port: web, Gain: sum}, {Port: dns, Gain: maps.Gain{Connections: 30_001}}, {Port: long, Gain: maps.Gain{Open: 1, Rejected: 1}}, {Port: port("prod/quiet", "", lb.TCP)},
		},
		Backends: []maps.BackendGain{
			{Port: web, Address: netip.MustParseAddrPort("10.244.1.2:8080"), Node: "n1", Zone: "a", State: "active", Gain: here},
			{Port: web, Address: netip.MustParseAddrPort("[fd00:10:244:2::7]:8080"), Node: "n2", Zone: "b", State: "draining", Gain: there},
			{Port: web, Address: netip.MustParseAddrPort("10.244.3.2:8080"), Node: "n3", State: "active"},
		},
		Clients: []maps.ClientGain{
			{Client: netip.MustParseAddr("10.244.1.9"), Gain: maps.Gain{Connections: 1, Open: 41}}, {Client: netip.MustParseAddr("fd00::9"), Gain: maps.Gain{Connections: 4, Open: 1, Refused: 1}},
		},
	}
}

func topDocumentIn(view string) topDocument {
	return topSortedBy(view, "new")
}

func topSortedBy(view, sort string) topDocument {
	g := gains()
	return topDocumentOf(view, "n1", sort, &g)
}

// The tables of all views, for terminals of 80 and 160 columns, and wide: testdata/top. NEARLB_UPDATE=1 writes what came out.
func TestTopShowsItsViews(t *testing.T) {
	for _, view := range topViews {
		for _, width := range []int{80, 160, 0} {
			t.Run(fmt.Sprintf("%s/%d", view, width), func(t *testing.T) {
				o := topOptions{view: view, interval: 2 * time.Second}
				if width == 0 {
					o.format, o.idle = command.FormatWide, true
				}
				var out bytes.Buffer
				if err := o.write(&out, width, topDocumentIn(view)); err != nil {
					t.Fatal(err)
				}
				goldenOf(t, filepath.Join("top", fmt.Sprintf("%s_%d.txt", view, width)), width, out.Bytes())
			})
		}
	}
}

// The contract's fields, under their names.
func TestTopTellsRatesInTheContractsFields(t *testing.T) {
	text, err := json.Marshal(topDocumentIn(topServices))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Node     string           `json:"node"`
		Interval float64          `json:"interval_seconds"`
		Rows     []map[string]any `json:"rows"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Node != "n1" || doc.Interval != 2 || len(doc.Rows) != 4 {
		t.Fatalf("document:\n%s", text)
	}
	want := map[string]any{
		"node": "n1", "time": "2026-01-02T03:04:05Z", "service": "prod/web", "port": "http", "protocol": "TCP", "new_per_second": 101.5, "open": 42.0,
		"bytes_in_per_second": 25_450.0, "bytes_out_per_second": 2_044_000.0, "failed_per_second": 8.0, "syn_p50_us": nil, "syn_p99_us": nil,
		"cross_zone_bytes_per_second": 44_450.0, "refused_per_second": 2.5, "unanswered_per_second": 1.0, "rejected_per_second": 0.0, "dropped_per_second": 4.5,
	}
	if diff := cmp.Diff(want, doc.Rows[1]); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	for view, identity := range map[string][]string{
		topBackends: {"service", "port", "backend", "state", "backend_node", "backend_zone"}, topClients: {"client"},
		topZones: {"client_zone", "backend_zone"}, topNodes: {"backend_node", "backend_zone"},
	} {
		row, err := json.Marshal(topDocumentIn(view).Rows[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range append(identity, "node", "time", "new_per_second", "open", "syn_p99_us", "cross_zone_bytes_per_second") {
			if !bytes.Contains(row, []byte(`"`+field+`":`)) {
				t.Errorf("%s: no field %s: %s", view, field, row)
			}
		}
	}
}

func TestTopSortsByEachColumn(t *testing.T) {
	for by, first := range map[string]string{
		"new": "kube-system/kube-dns:dns/UDP", "open": "prod/web:http", "in": "prod/web:http", "failed": "prod/web:http", "cross": "prod/web:http",
		"syn": "kube-system/kube-dns:dns/UDP", "name": "kube-system/kube-dns:dns/UDP",
	} {
		if doc := topSortedBy(topServices, by); doc.Rows[0].name() != first {
			t.Errorf("by %s the first is %s", by, doc.Rows[0].name())
		}
	}
}

func TestRatesHaveThreeDigits(t *testing.T) {
	for rated, want := range map[float64]string{0: "0", 0.02: "0.1", 1: "1.0", 9.94: "9.9", 9.95: "10", 847: "847", 9999: "9999", 15_000.5: "15k", 1_230_000: "1.2M"} {
		if got := rate(rated); got != want {
			t.Errorf("%v is %q, want %q", rated, got, want)
		}
	}
}

// With --node a Service has what its backends there gained, in all views the same.
func TestTopOfANodeSumsItsBackends(t *testing.T) {
	g := gains()
	o := topOptions{view: topServices, only: filter{node: "n2"}}
	o.narrow(&g)
	if diff := cmp.Diff([]maps.PortGain{{Port: g.Backends[0].Port, Gain: g.Backends[0].Gain}}, g.Ports); diff != "" || g.Backends[0].Node != "n2" {
		t.Errorf("%+v: %s", g.Backends, diff)
	}
}

func TestTopRefusesFiltersThatItsViewHasNot(t *testing.T) {
	for args, want := range map[string]string{
		"top --client 10.244.1.9":        "--client narrows clients alone",
		"top backends --client 10.0.0.9": "--client narrows clients alone",
		"top clients --node n2":          "clients are counted over all Services",
		"top clients --service prod/web": "clients are counted over all Services",
	} {
		var out, errs bytes.Buffer
		if status := run(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &errs); status != command.ExitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: %d, %s", args, status, &errs)
		}
	}
}

func TestAPortsNameThatSaysItsProtocolIsEnough(t *testing.T) {
	for port, want := range map[string]string{"": "a/b/UDP", "dns": "a/b:dns/UDP", "udp": "a/b:udp", "dns-udp": "a/b:dns-udp", "udpx": "a/b:udpx/UDP"} {
		row := topRow{Service: "a/b", Port: &port, Protocol: "UDP"}
		if got := row.name(); got != want {
			t.Errorf("port %q: %s, want %s", port, got, want)
		}
	}
}

// An idle node has no rows: a list without elements in JSON, which readers go through.
func TestAnIdleNodesRowsAreAList(t *testing.T) {
	for _, view := range topViews {
		text, err := json.Marshal(topDocumentOf(view, "n1", "new", &maps.Gains{}))
		if err != nil || !strings.Contains(string(text), `"rows":[]`) {
			t.Errorf("%s: %s, %v", view, text, err)
		}
	}
}
