// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// uiDocument is the map of one node: nearlb ui -o json.
type uiDocument struct {
	Node     string      `json:"node"` // "" no agent says
	Zone     string      `json:"zone"` // of the node, "" unknown
	Time     time.Time   `json:"time"`
	Interval float64     `json:"interval_seconds"` // 0: the first look, rates come with the next one
	Agent    uiAgent     `json:"agent"`
	Matching int         `json:"matching"` // service ports that the filter lets through; services has at most uiPorts of them
	Services []uiService `json:"services"`
	Backends []uiBackend `json:"backends"`
	Zones    []topRow    `json:"zones"` // of all Services
}

// uiAgent is who keeps the tables.
type uiAgent struct {
	Works bool       `json:"works"`
	State string     `json:"state"` // as in its status; unknown: it has written none
	Text  string     `json:"text"`
	Seen  *time.Time `json:"seen,omitempty"` // when it last said so
}

// uiService is a service port: its row of nearlb top, and what is to be known at a glance.
type uiService struct {
	topRow
	Frontends []string `json:"frontends"` // addresses with ports, at most uiFrontends
	Action    string   `json:"action"`    // of connections from this node: balance, reject, drop
	Reason    string   `json:"reason"`
	Ready     int      `json:"ready"`     // backends that new connections go to
	Endpoints int      `json:"endpoints"` // backends that are not gone; backends has at most uiBackends of them
	Trouble   []string `json:"trouble"`   // words: no-endpoints, refused, ejected ...
}

// uiBackend is a backend: its row of nearlb top, and whether new connections leave it out.
type uiBackend struct {
	topRow
	Tier           string   `json:"tier"`
	EjectedUntil   string   `json:"ejected_until"`
	EjectedBecause string   `json:"ejected_because"`
	Trouble        []string `json:"trouble"`
}

// stateGone is of a backend that connections still name, and that is no endpoint any more.
const stateGone = "gone"

// A page of more is nothing that a person looks at: the filter, and nearlb services, have the others.
const (
	uiPorts     = 60
	uiBackends  = 100 // of a service port
	uiFrontends = 4
)

// uiPicked are the service ports of a document.
type uiPicked struct {
	ports      map[lb.PortName]*uiService
	backends   map[uiBackendKey]*uiBackend
	backendsOf map[lb.PortName]int // how many of backends are of a port
	order      []lb.PortName
	matching   int
}

type uiBackendKey struct {
	port    lb.PortName
	address netip.AddrPort
}

// pickForUI takes the ports whose names contain the filter: those where something fails, then the busiest, then by name.
func pickForUI(g *maps.Gains, endpoints map[lb.PortName]maps.EndpointCount, filter string) *uiPicked {
	p := &uiPicked{ports: map[lb.PortName]*uiService{}, backends: map[uiBackendKey]*uiBackend{}, backendsOf: map[lb.PortName]int{}}
	busy := make(map[lb.PortName]*maps.PortGain, len(g.Ports))
	for i := range g.Ports {
		busy[g.Ports[i].Port] = &g.Ports[i]
	}
	var some []*maps.PortGain
	for name := range endpoints {
		if !strings.Contains(withPort(name.Service.String(), name.Port), filter) {
			continue
		}
		port := busy[name]
		if port == nil {
			port = &maps.PortGain{Port: name}
		}
		some = append(some, port)
	}
	p.matching = len(some)
	failing := func(g *maps.PortGain) int {
		if g.Failed() > 0 || endpoints[g.Port].Ready == 0 {
			return 1
		}
		return 0
	}
	slices.SortFunc(some, func(a, b *maps.PortGain) int {
		return cmp.Or(failing(b)-failing(a), cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.Open, a.Open), a.Port.Compare(b.Port))
	})
	for _, port := range some[:min(len(some), uiPorts)] {
		rows := topRowsOf(topServices, &maps.Gains{Interval: g.Interval, Ports: []maps.PortGain{*port}})
		count := endpoints[port.Port]
		p.order = append(p.order, port.Port)
		p.ports[port.Port] = &uiService{topRow: rows[0], Frontends: []string{}, Ready: count.Ready, Endpoints: count.All, Trouble: troubleOf(&rows[0])}
	}
	p.pickBackends(g)
	return p
}

// pickBackends takes those of the ports where something goes on: of very many those where something fails, then the busiest. What is
// idle comes by addBackend.
func (p *uiPicked) pickBackends(g *maps.Gains) {
	of := map[lb.PortName][]maps.BackendGain{}
	for i := range g.Backends {
		if b := &g.Backends[i]; p.ports[b.Port] != nil && (b.State != stateGone || b.Open > 0) {
			of[b.Port] = append(of[b.Port], *b)
		}
	}
	for _, all := range of {
		slices.SortFunc(all, func(a, b maps.BackendGain) int {
			return cmp.Or(cmp.Compare(b.Failed(), a.Failed()), cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.Open, a.Open), a.Address.Compare(b.Address))
		})
		for i := range all {
			p.pickBackend(&all[i], g.Interval)
		}
	}
}

// pickBackend takes one, unless there are very many of its port already.
func (p *uiPicked) pickBackend(b *maps.BackendGain, interval time.Duration) *uiBackend {
	if p.backendsOf[b.Port] >= uiBackends {
		return nil
	}
	rows := topRowsOf(topBackends, &maps.Gains{Interval: interval, Backends: []maps.BackendGain{*b}})
	picked := &uiBackend{topRow: rows[0], Trouble: troubleOf(&rows[0])}
	p.backendsOf[b.Port]++
	p.backends[uiBackendKey{b.Port, b.Address}] = picked
	return picked
}

// troubleOf names what failed in the interval.
func troubleOf(r *topRow) []string {
	words := []string{}
	for _, failed := range []struct {
		word string
		rate float64
	}{{"refused", r.Refused}, {"unanswered", r.Unanswered}, {"rejected", r.Rejected}, {"dropped", r.Dropped}} {
		if failed.rate > 0 {
			words = append(words, failed.word)
		}
	}
	return words
}

// addFrontend notes an address, and what it does with connections from this node: the ClusterIPs' count, which come first.
func (p *uiPicked) addFrontend(row *maps.FrontendRow) {
	port, err := portNameOf(row.Service, row.Port, row.Protocol)
	s := p.ports[port]
	if err != nil || s == nil {
		return
	}
	if len(s.Frontends) < uiFrontends {
		s.Frontends = append(s.Frontends, hostPort(row.Address, row.FrontendPort))
	}
	serves := row.Internal.Action == string(lb.Balance)
	if s.Action == "" || s.Action == string(lb.Balance) && !serves && row.Kind == string(lb.KindClusterIP) { // one family may lack endpoints
		s.Action, s.Reason = row.Internal.Action, row.Internal.Reason
	}
}

// addBackend notes what the rates do not tell, and takes one that is idle.
func (p *uiPicked) addBackend(row *maps.BackendRow) {
	port, err := portNameOf(row.Service, row.Port, row.Protocol)
	s := p.ports[port]
	if err != nil || s == nil {
		return
	}
	where := netip.AddrPortFrom(row.Address, row.BackendPort)
	b := p.backends[uiBackendKey{port, where}]
	if row.State == stateGone { // another one may have its address by now
		return
	}
	if row.EjectedUntil != "" {
		s.Ready = max(s.Ready-1, 0)
		if !slices.Contains(s.Trouble, stateEjected) {
			s.Trouble = append(s.Trouble, stateEjected)
		}
	}
	if b == nil {
		b = p.pickBackend(&maps.BackendGain{Port: port, Address: where, Node: row.Node, Zone: row.Zone, State: row.State}, 0)
	}
	if b == nil {
		return
	}
	b.Tier, b.EjectedUntil, b.EjectedBecause = row.Tier, row.EjectedUntil, row.EjectedBecause
	if row.EjectedUntil != "" {
		b.Trouble = append(b.Trouble, stateEjected)
	}
}

// document puts it together, in an order of names that does not change with the traffic.
func (p *uiPicked) document(node string, g *maps.Gains) uiDocument {
	zones := topDocumentOf(topZones, node, g)
	sortTop(zones.Rows, "name")
	doc := uiDocument{Node: node, Zone: g.Zone, Time: zones.Time, Interval: zones.Interval, Matching: p.matching, Services: []uiService{}, Backends: []uiBackend{}, Zones: zones.Rows}
	slices.SortFunc(p.order, lb.PortName.Compare)
	for _, port := range p.order {
		s := p.ports[port]
		if s.Action != "" && s.Action != string(lb.Balance) {
			s.Trouble = append([]string{s.Reason}, s.Trouble...)
		}
		s.Node, s.Time = node, doc.Time
		doc.Services = append(doc.Services, *s)
	}
	for _, b := range p.backends {
		b.Node, b.Time = node, doc.Time
		doc.Backends = append(doc.Backends, *b)
	}
	slices.SortFunc(doc.Backends, func(a, b uiBackend) int {
		return cmp.Or(strings.Compare(a.Service, b.Service), strings.Compare(text(a.Port), text(b.Port)), strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Backend, b.Backend))
	})
	return doc
}

func portNameOf(service, port, protocol string) (name lb.PortName, err error) {
	name.Port = port
	return name, cmp.Or(name.Service.UnmarshalText([]byte(service)), name.Protocol.UnmarshalText([]byte(protocol)))
}
