// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/ui"
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
		if all[i].Unanswered > 0 {
			count.Ejected++ // as below
		}
		endpoints[all[i].Port] = count
	}
	g.Ports = slices.DeleteFunc(g.Ports, func(p maps.PortGain) bool { return p.Gain == (maps.Gain{}) }) // as a meter leaves out what is idle
	g.Backends = slices.DeleteFunc(slices.Clone(all), func(b maps.BackendGain) bool { return b.Gain == (maps.Gain{}) })
	seen := uiSeen{gains: g, endpoints: endpoints, refusing: map[lb.PortName]bool{}}
	for port, count := range endpoints {
		seen.refusing[port] = count.Ready == 0
	}
	p := seen.pick(filter)
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

// Of many Services a page has those that fail, whatever their names and however little goes there, then those that would, then the
// busiest: not what is idle and has nothing behind it, of which there are many where Deployments have no replicas.
func TestThePageHasWhatFailsOfManyServices(t *testing.T) {
	g := &maps.Gains{Interval: time.Second}
	seen := uiSeen{gains: g, endpoints: map[lb.PortName]maps.EndpointCount{}, refusing: map[lb.PortName]bool{}}
	put := func(name string, gain maps.Gain, count maps.EndpointCount, refuses bool) {
		port := uiPort(name, "", lb.TCP)
		if gain != (maps.Gain{}) {
			g.Ports = append(g.Ports, maps.PortGain{Port: port, Gain: gain})
		}
		seen.endpoints[port], seen.refusing[port] = count, refuses
	}
	one := maps.EndpointCount{Ready: 1, All: 1}
	for i := range 3 * uiPorts {
		put(fmt.Sprintf("empty/s%03d", i), maps.Gain{}, maps.EndpointCount{}, true)
		put(fmt.Sprintf("many/s%03d", i), maps.Gain{Connections: uint64(i)}, one, false)
	}
	put("many/s007", maps.Gain{Refused: 1}, one, false)
	put("urgent/no-endpoints", maps.Gain{Rejected: 500}, maps.EndpointCount{}, true)
	put("urgent/ejected", maps.Gain{}, maps.EndpointCount{Ready: 3, All: 3, Ejected: 1}, false)
	put("urgent/no-local-endpoints", maps.Gain{}, one, true)
	put("urgent/unready", maps.Gain{}, maps.EndpointCount{All: 2}, true)
	doc := seen.pick("").document("n1", g)
	var names []string
	for _, s := range doc.Services {
		names = append(names, s.Service)
	}
	want := []string{"many/s007"}
	for i := 3*uiPorts - (uiPorts - 5); i < 3*uiPorts; i++ {
		want = append(want, fmt.Sprintf("many/s%03d", i))
	}
	want = append(want, "urgent/ejected", "urgent/no-endpoints", "urgent/no-local-endpoints", "urgent/unready")
	if doc.Matching != 6*uiPorts+4 || !slices.Equal(names, want) {
		t.Errorf("of %d it has %q, want %q", doc.Matching, names, want)
	}
	for range 2*uiPorts + 1 { // what fails most is there however much fails
		put(fmt.Sprintf("failing/s%03d", len(g.Ports)), maps.Gain{Connections: 1000, Unanswered: 1}, one, false)
	}
	if p := seen.pick(""); p.ports[uiPort("urgent/no-endpoints", "", lb.TCP)] == nil || len(p.ports) != uiPorts {
		t.Error("of very many that fail it does not have the one that fails most")
	}
}

// Of very many backends the map and the table have those that are left out, though nothing goes there.
func TestThePageHasWhatIsEjectedOfManyBackends(t *testing.T) {
	port := uiPort("shop/web", "http", lb.TCP)
	g := &maps.Gains{Interval: time.Second}
	seen := uiSeen{gains: g, endpoints: map[lb.PortName]maps.EndpointCount{port: {Ready: 1000, All: 1000, Ejected: 2}}}
	at := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80)
	}
	for i := range 990 {
		g.Backends = append(g.Backends, maps.BackendGain{Port: port, Address: at(i), State: "active", Gain: maps.Gain{Connections: uint64(1 + i)}})
	}
	g.Backends[17].Gain = maps.Gain{Refused: 1}
	p := seen.pick("")
	ejected := []string{at(5).String(), at(999).String()}
	for i := range 1000 {
		row := maps.BackendRow{Service: "shop/web", Port: "http", Protocol: "TCP", Address: at(i).Addr(), BackendPort: 80, State: "active"}
		if slices.Contains(ejected, at(i).String()) {
			row.EjectedUntil, row.EjectedBecause = "2026-01-02T03:05:00Z", "no answer"
		}
		p.addBackend(&row)
	}
	doc := p.document("n1", g)
	shown := map[string]string{}
	for _, b := range doc.Backends {
		shown[b.Backend] = strings.Join(b.Trouble, " ")
	}
	if len(shown) != uiBackends || shown[ejected[0]] != "ejected" || shown[ejected[1]] != "ejected" || shown[at(17).String()] != "refused" {
		t.Errorf("%d backends, those ejected %q %q, the one that refused %q", len(shown), shown[ejected[0]], shown[ejected[1]], shown[at(17).String()])
	}
	if _, busy := shown[at(989).String()]; !busy {
		t.Error("it does not have the busiest")
	}
	if s := doc.Services[0]; s.Ready != 998 || strings.Join(s.Trouble, " ") != "ejected" {
		t.Errorf("%d are ready, trouble %q", s.Ready, s.Trouble)
	}
}

// An address that a gone backend's connections name, and that another endpoint has by now, is that endpoint's.
func TestThePageHasAnAddressOnce(t *testing.T) {
	port, where := uiPort("shop/web", "http", lb.TCP), netip.MustParseAddrPort("10.244.0.1:80")
	for _, states := range [][]string{{"gone", "active"}, {"active", "gone"}, {"gone"}} {
		g := &maps.Gains{Interval: time.Second}
		for i, state := range states {
			g.Backends = append(g.Backends, maps.BackendGain{Port: port, Address: where, State: state, Gain: maps.Gain{Open: uint64(1 + i)}})
		}
		p := (&uiSeen{gains: g, endpoints: map[lb.PortName]maps.EndpointCount{port: {Ready: 1, All: 1}}}).pick("")
		p.addBackend(&maps.BackendRow{Service: "shop/web", Port: "http", Protocol: "TCP", Address: where.Addr(), BackendPort: 80, State: "active", Tier: "zone"})
		if doc := p.document("n1", g); len(doc.Backends) != 1 || doc.Backends[0].State != "active" || doc.Backends[0].Tier != "zone" {
			t.Errorf("%q: %+v", states, doc.Backends)
		}
	}
}

// Everybody on the host may ask: several who do cost what one does, and what nobody waits for any more is not looked up.
func TestSeveralWhoAskThePageCostWhatOneCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newUINode(agentFlags{}, false)
		all, entered, looks, on := uiAnswers[int]{}, 0, 0, make(chan struct{})
		node.enter = func(f func() error) error { entered++; <-on; return f() }
		look := func(ctx context.Context, question string) (int, error) {
			return answered(ctx, node, all, question, func() (int, error) { looks++; return looks, nil })
		}
		gone, goes := context.WithCancel(t.Context())
		told := make(chan error, 5)
		go func() { _, err := look(t.Context(), "a"); told <- err }()
		synctest.Wait()
		for range 2 {
			go func() { _, err := look(gone, "b"); told <- err }()
			go func() { _, err := look(t.Context(), "a"); told <- err }()
		}
		synctest.Wait()
		goes()
		for range 2 {
			if err := <-told; !errors.Is(err, context.Canceled) {
				t.Errorf("who went away is told %v", err)
			}
		}
		close(on)
		for range 3 {
			if err := <-told; err != nil {
				t.Error(err)
			}
		}
		if entered != 1 || looks != 1 {
			t.Errorf("three who ask the same, and two who went away: %d looks", looks)
		}
		if n, err := look(t.Context(), "b"); n != 2 || err != nil {
			t.Errorf("another question gets document %d, %v", n, err)
		}
		<-time.After(uiLook)
		if n, err := look(t.Context(), "a"); n != 3 || err != nil {
			t.Errorf("later it gets document %d, %v", n, err)
		}
	})
}

func TestThePageSaysThatTooManyAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node, on, codes := newUINode(agentFlags{}, false), make(chan struct{}), make(chan int, 100)
		node.enter = func(func() error) error { <-on; return errors.New("no tables") }
		page := ui.Handler(uiNodes{node})
		for i := range cap(codes) {
			go func() {
				recorder := httptest.NewRecorder()
				page.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", fmt.Sprintf("http://localhost/map.json?filter=%d", i), nil))
				if strings.Contains(recorder.Body.String(), `"error":"too many ask at once`) {
					codes <- recorder.Code
				} else {
					codes <- 0
				}
			}()
		}
		synctest.Wait()
		if refused := len(codes); refused < cap(codes)/2 {
			t.Errorf("%d of %d who ask are refused", refused, cap(codes))
		}
		for range len(codes) {
			if code := <-codes; code != http.StatusServiceUnavailable {
				t.Errorf("who is refused is told %d", code)
			}
		}
		close(on)
		synctest.Wait()
	})
}

func TestUIRefusesAddressesThatOthersReach(t *testing.T) {
	var out, errs bytes.Buffer
	if status := run(t.Context(), []string{"agent", "--node-name=n1", "--ui", "--metrics-address=:10249"}, strings.NewReader(""), &out, &errs); status != command.ExitUsage ||
		errs.String() != "nearlb: --ui --metrics-address \":10249\": want a loopback address with a port, as 127.0.0.1:8249 or [::1]:8249: the page is for this host alone\n" {
		t.Errorf("agent: %d, %s", status, &errs)
	}
	for _, address := range []string{"0.0.0.0:8249", ":8249", "[::]:8249", "192.0.2.1:8249", "localhost:8249", "127.0.0.1"} {
		if _, err := listenLocally(address); err == nil || !strings.Contains(err.Error(), "want a loopback address") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
