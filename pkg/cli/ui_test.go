// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// hostile is a name that no API server takes, and that a damaged or forged table may have.
const hostile = `<img src=x onerror=document.title="owned">`

func uiPort(service, port string, protocol lb.Protocol) lb.PortName {
	namespace, name, _ := strings.Cut(service, "/")
	return lb.PortName{Service: lb.ServiceName{Namespace: namespace, Name: name}, Port: port, Protocol: protocol}
}

// uiGains are two seconds of a node in zone a, with one of each kind of trouble.
func uiGains() *maps.Gains {
	g := &maps.Gains{Zone: "eu-west-1a", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Interval: 2 * time.Second}
	sums := map[lb.PortName]*maps.Gain{}
	put := func(port lb.PortName, address, node, zone, state string, gain maps.Gain) {
		if zone != g.Zone && zone != "" {
			gain.CrossZone = gain.BytesTo + gain.BytesFrom
		}
		g.Backends = append(g.Backends, maps.BackendGain{Port: port, Address: netip.MustParseAddrPort(address), Node: node, Zone: zone, State: state, Gain: gain})
		if sums[port] == nil {
			sums[port] = &maps.Gain{}
		}
		sums[port].Add(&gain)
	}
	web, dns, api := uiPort("default/web", "http", lb.TCP), uiPort("kube-system/kube-dns", "dns", lb.UDP), uiPort("default/kubernetes", "https", lb.TCP)
	put(web, "10.244.1.10:8080", "node-a-1", "eu-west-1a", "active", maps.Gain{Connections: 480, Open: 37, BytesTo: 310_000, BytesFrom: 9_800_000})
	put(web, "10.244.2.10:8080", "node-a-2", "eu-west-1a", "active", maps.Gain{Connections: 421, Open: 29, BytesTo: 290_000, BytesFrom: 8_700_000})
	put(web, "10.244.3.10:8080", "node-b-1", "eu-west-1b", "active", maps.Gain{Connections: 12, Open: 3, BytesTo: 9_000, BytesFrom: 210_000})
	put(web, "[fd00:10:244:3::10]:8080", "node-b-1", "eu-west-1b", "draining", maps.Gain{Open: 2, BytesTo: 900})
	put(dns, "10.244.1.3:53", "node-a-1", "eu-west-1a", "active", maps.Gain{Connections: 61_000, Open: 4000, BytesTo: 5_400_000, BytesFrom: 12_000_000})
	put(dns, "10.244.5.3:53", "node-c-1", "eu-west-1c", "active", maps.Gain{})
	put(api, "192.0.2.1:6443", "control-1", "", "active", maps.Gain{Connections: 2, Open: 8, BytesTo: 4_000, BytesFrom: 90_000})
	cart := uiPort("shop/cart", "grpc", lb.TCP)
	put(cart, "10.244.1.21:9090", "node-a-1", "eu-west-1a", "active", maps.Gain{Connections: 40, Open: 11, BytesTo: 80_000, BytesFrom: 90_000, Unanswered: 3})
	put(cart, "10.244.3.21:9090", "node-b-1", "eu-west-1b", "active", maps.Gain{Connections: 90, Open: 60, BytesTo: 80_000, BytesFrom: 90_000})
	long := uiPort("payments-and-invoices/customer-facing-checkout-frontend-with-a-long-name", "https", lb.TCP)
	for i := range 11 {
		put(long, fmt.Sprintf("[fd00:10:244:%d::%x]:8443", i, 4096+i), fmt.Sprintf("node-%c-%d", 'a'+i%3, i), "eu-west-1"+string(rune('a'+i%3)), "active", maps.Gain{Connections: uint64(3 * i), Open: uint64(i)})
	}
	put(uiPort(hostile+"/"+hostile, "", lb.TCP), "10.244.1.66:80", hostile, "eu-west-1a", "active", maps.Gain{Connections: 1})
	empty, refusing := uiPort("shop/empty", "http", lb.TCP), uiPort("shop/refusing", "http", lb.TCP)
	put(refusing, "10.244.2.22:80", "node-a-2", "eu-west-1a", "active", maps.Gain{Connections: 8, Refused: 8})
	unready := uiPort("shop/unready", "http", lb.TCP)
	put(unready, "10.244.1.23:80", "node-a-1", "eu-west-1a", "quiet", maps.Gain{})
	put(unready, "10.244.3.23:80", "node-b-1", "eu-west-1b", "quiet", maps.Gain{})
	sums[empty] = &maps.Gain{Rejected: 5}
	for port, sum := range sums {
		g.Ports = append(g.Ports, maps.PortGain{Port: port, Gain: *sum})
	}
	return g
}

func uiSides(action, reason string) maps.SideRow {
	return maps.SideRow{Action: action, Reason: reason, Tiers: []maps.TierRow{{Tier: "zone", Backends: []maps.TierBackendRow{{}, {}}}}}
}

// uiOf is the document of uiGains, of Services whose names contain a text.
func uiOf(filter string) uiDocument {
	g := uiGains()
	all, endpoints := g.Backends, map[lb.PortName]maps.EndpointCount{}
	for i := range g.Ports {
		endpoints[g.Ports[i].Port] = maps.EndpointCount{}
	}
	for i := range all {
		count := endpoints[all[i].Port]
		if count.All++; all[i].State == "active" {
			count.Ready++
		}
		endpoints[all[i].Port] = count
	}
	g.Ports = slices.DeleteFunc(g.Ports, func(p maps.PortGain) bool { return p.Gain == (maps.Gain{}) }) // as a meter leaves out what is idle
	g.Backends = slices.DeleteFunc(slices.Clone(all), func(b maps.BackendGain) bool { return b.Gain == (maps.Gain{}) })
	p := pickForUI(g, endpoints, filter)
	for i, port := range slices.SortedFunc(func(yield func(lb.PortName) bool) {
		for port := range p.ports {
			if !yield(port) {
				return
			}
		}
	}, lb.PortName.Compare) {
		side := uiSides("balance", "all")
		if p.ports[port].Ready == 0 {
			side = uiSides("reject", "no-endpoints")
		}
		p.addFrontend(&maps.FrontendRow{Service: port.Service.String(), Port: port.Port, Protocol: port.Protocol.String(), Kind: "ClusterIP", Address: netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", 10+i)), FrontendPort: 80, Internal: side})
	}
	for i := range all {
		b := &all[i]
		row := maps.BackendRow{Node: b.Node, Zone: b.Zone, Service: b.Port.Service.String(), Port: b.Port.Port, Protocol: b.Port.Protocol.String(), Address: b.Address.Addr(), BackendPort: b.Address.Port(), State: b.State, Tier: "zone"}
		if b.Unanswered > 0 {
			row.EjectedUntil, row.EjectedBecause = "2026-01-02T03:05:00Z", "no answer to 3 connections of several clients, nor to this node"
		}
		p.addBackend(&row)
	}
	doc := p.document("node-a-1", g)
	doc.Agent = uiAgent{Works: true, State: "serving", Text: "serving, process 7"}
	return doc
}

// The documents that the page reads, as tests/ui shows them in a browser: testdata/ui. NEARLB_UPDATE=1 writes what came out.
func TestThePageReadsItsDocuments(t *testing.T) {
	document := func(name string, doc any) {
		text, err := json.MarshalIndent(uiTold{Nodes: []any{doc}}, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		goldenOf(t, "ui/"+name, 0, append(text, '\n'))
	}
	document("map.json", uiOf(""))
	s := sound()
	s.service = lb.ServiceName{Namespace: hostile, Name: hostile}
	s.drops = []journal.Drop{{Time: s.now.Add(-time.Minute), Verdict: "reject", Reason: "no-endpoints", Service: s.service.String()}}
	doc := uiWhy{whyDocument: diagnose(s), Packets: true, Frontends: s.frontends, Zones: countedZones().rows,
		Backends: []maps.BackendRow{{Service: s.service.String(), Address: netip.MustParseAddr("10.244.1.66"), BackendPort: 80, Node: hostile, Zone: "eu-west-1a", State: "active"}}}
	for i := range doc.Zones {
		doc.Zones[i].Time = s.now
	}
	document("why.json", doc)
}

func TestThePageNamesWhatFails(t *testing.T) {
	trouble := map[string]string{}
	doc := uiOf("")
	for _, s := range doc.Services {
		trouble[s.name()] = strings.Join(s.Trouble, " ")
	}
	for name, want := range map[string]string{"shop/empty:http": "no-endpoints rejected", "shop/refusing:http": "refused", "shop/unready:http": "no-endpoints", "shop/cart:grpc": "unanswered ejected", "default/web:http": ""} {
		if got, there := trouble[name]; !there || got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, b := range doc.Backends {
		if got := strings.Join(b.Trouble, " "); b.Backend == "10.244.1.21:9090" && got != "unanswered ejected" || b.Backend == "10.244.1.10:8080" && got != "" {
			t.Errorf("%s: %q", b.Backend, got)
		}
	}
	for _, s := range doc.Services {
		if s.name() == "shop/cart:grpc" && (s.Ready != 1 || s.Endpoints != 2) {
			t.Errorf("%d of %d are ready: one of two is ejected", s.Ready, s.Endpoints)
		}
	}
}

func TestThePageFiltersByName(t *testing.T) {
	doc := uiOf("shop/")
	if len(doc.Services) != 4 || doc.Matching != 4 || len(doc.Backends) != 5 {
		t.Errorf("%d Services of %d, %d backends", len(doc.Services), doc.Matching, len(doc.Backends))
	}
	if none := uiOf("nobody"); len(none.Services) != 0 || none.Services == nil || none.Backends == nil || none.Zones == nil {
		t.Errorf("%+v", none)
	}
}

// Of many Services a page has those that fail, whatever their names and however little goes there, then the busiest.
func TestThePageHasWhatFailsOfManyServices(t *testing.T) {
	g, endpoints := &maps.Gains{Interval: time.Second}, map[lb.PortName]maps.EndpointCount{}
	for i := range 3 * uiPorts {
		port := uiPort(fmt.Sprintf("many/s%03d", i), "", lb.TCP)
		gain := maps.Gain{Connections: uint64(i)}
		if i == 7 {
			gain = maps.Gain{Refused: 1}
		}
		g.Ports = append(g.Ports, maps.PortGain{Port: port, Gain: gain})
		endpoints[port] = maps.EndpointCount{Ready: 1, All: 1}
	}
	doc := pickForUI(g, endpoints, "").document("n1", g)
	if len(doc.Services) != uiPorts || doc.Matching != 3*uiPorts || doc.Services[0].Service != "many/s007" || doc.Services[1].Service != "many/s121" {
		t.Errorf("%d of %d, first %s and %s", len(doc.Services), doc.Matching, doc.Services[0].Service, doc.Services[1].Service)
	}
}

func TestUIRefusesAddressesThatOthersReach(t *testing.T) {
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"agent", "--node-name=n1", "--ui", "--metrics-address=:10249"}, strings.NewReader(""), &out, &errs); status != exitUsage ||
		errs.String() != "nearlb: --ui --metrics-address \":10249\": want a loopback address with a port, as 127.0.0.1:8249 or [::1]:8249: the page is for this host alone\n" {
		t.Errorf("agent: %d, %s", status, &errs)
	}
	for _, address := range []string{"0.0.0.0:8249", ":8249", "[::]:8249", "192.0.2.1:8249", "localhost:8249", "127.0.0.1"} {
		if _, err := listenLocally(address); err == nil || !strings.Contains(err.Error(), "want a loopback address") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
