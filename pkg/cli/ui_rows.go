// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
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
	ports    map[lb.PortName]*uiService
	backends map[lb.PortName]map[netip.AddrPort]*uiCandidate
	order    []lb.PortName
	matching int
}

// uiCandidate is a backend of a port that was taken: very many of one port are not shown.
type uiCandidate struct {
	gain maps.BackendGain
	row  *maps.BackendRow // nil: the tables have none that is an endpoint
}

// uiSeen is what the choice among all service ports is made of.
type uiSeen struct {
	gains     *maps.Gains
	endpoints map[lb.PortName]maps.EndpointCount // of every port
	refusing  map[lb.PortName]bool               // connections from this node find no backend
}

// urgency is higher for what a person has to see first: what fails, then what would fail if somebody came, then what is in use. Last are
// idle ports that nothing is behind, as of Deployments without replicas: of these there may be more than a page has rows.
func (s *uiSeen) urgency(g *maps.PortGain) int {
	count := s.endpoints[g.Port]
	switch {
	case g.Failed() > 0:
		return 3
	case count.All > 0 && (count.Ejected > 0 || s.refusing[g.Port]):
		return 2
	case count.Ready > 0 || g.Connections+g.Open > 0:
		return 1
	}
	return 0
}

// uiRanked is a port, and how urgent it is.
type uiRanked struct {
	*maps.PortGain
	urgency int
}

// ranked are the ports whose names contain the filter: the most urgent, of those where most fails, then the busiest, then by name.
func (s *uiSeen) ranked(filter string) (all []uiRanked) {
	busy := make(map[lb.PortName]*maps.PortGain, len(s.gains.Ports))
	for i := range s.gains.Ports {
		busy[s.gains.Ports[i].Port] = &s.gains.Ports[i]
	}
	for name := range s.endpoints {
		if !strings.Contains(table.WithPort(name.Service.String(), name.Port), filter) {
			continue
		}
		port := busy[name]
		if port == nil {
			port = &maps.PortGain{Port: name}
		}
		all = append(all, uiRanked{port, s.urgency(port)})
	}
	slices.SortFunc(all, func(a, b uiRanked) int {
		return cmp.Or(b.urgency-a.urgency, cmp.Compare(b.Failed(), a.Failed()), cmp.Compare(b.Connections, a.Connections), cmp.Compare(b.Open, a.Open), a.Port.Compare(b.Port))
	})
	return all
}

// pick takes the first of the ports whose names contain the filter.
func (s *uiSeen) pick(filter string) *uiPicked {
	all := s.ranked(filter)
	p := &uiPicked{ports: map[lb.PortName]*uiService{}, backends: map[lb.PortName]map[netip.AddrPort]*uiCandidate{}, matching: len(all)}
	for _, port := range all[:min(len(all), uiPorts)] {
		row := topRowOf(topServices, &maps.Gains{Interval: s.gains.Interval, Ports: []maps.PortGain{*port.PortGain}})
		count := s.endpoints[port.Port]
		p.order = append(p.order, port.Port)
		p.ports[port.Port] = &uiService{topRow: row, Frontends: []string{}, Ready: count.Ready - count.Ejected, Endpoints: count.All, Trouble: troubleOf(&row, count.Ejected > 0)}
		p.backends[port.Port] = map[netip.AddrPort]*uiCandidate{}
	}
	p.addGains(s.gains)
	return p
}

// topRowOf is the row of gains that have one.
func topRowOf(view string, g *maps.Gains) topRow {
	return topRowsOf(view, "", g, slices.Collect(topLines(view, g)))[0]
}

// addGains notes the backends of the ports where something goes on. What is idle comes by addBackend.
func (p *uiPicked) addGains(g *maps.Gains) {
	for i := range g.Backends {
		b := &g.Backends[i]
		of := p.backends[b.Port]
		if of == nil || b.State == stateGone && b.Open == 0 {
			continue
		}
		if other := of[b.Address]; other == nil || other.gain.State == stateGone { // another one may have its address by now
			of[b.Address] = &uiCandidate{gain: *b}
		}
	}
}

// pickBackends has the rows of a port's backends: of very many those that are left out, then where something fails, then the busiest.
func (p *uiPicked) pickBackends(port lb.PortName, interval time.Duration) (picked []uiBackend) {
	all := make([]*uiCandidate, 0, len(p.backends[port]))
	for _, c := range p.backends[port] {
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b *uiCandidate) int {
		if a.ejected() != b.ejected() {
			if a.ejected() {
				return -1
			}
			return 1
		}
		x, y := &a.gain, &b.gain
		return cmp.Or(cmp.Compare(y.Failed(), x.Failed()), cmp.Compare(y.Connections, x.Connections), cmp.Compare(y.Open, x.Open), x.Address.Compare(y.Address))
	})
	for _, c := range all[:min(len(all), uiBackends)] {
		row := topRowOf(topBackends, &maps.Gains{Interval: interval, Backends: []maps.BackendGain{c.gain}})
		b := uiBackend{topRow: row, Trouble: troubleOf(&row, c.ejected())}
		if c.row != nil {
			b.Tier, b.EjectedUntil, b.EjectedBecause = c.row.Tier, c.row.EjectedUntil, c.row.EjectedBecause
		}
		picked = append(picked, b)
	}
	return picked
}

func (c *uiCandidate) ejected() bool { return c.row != nil && c.row.EjectedUntil != "" }

// troubleOf names what failed in the interval, and what new connections leave out.
func troubleOf(r *topRow, ejected bool) []string {
	words := []string{}
	for _, failed := range []struct {
		word string
		rate float64
	}{{"refused", r.Refused}, {"unanswered", r.Unanswered}, {"rejected", r.Rejected}, {"dropped", r.Dropped}} {
		if failed.rate > 0 {
			words = append(words, failed.word)
		}
	}
	if ejected {
		words = append(words, explain.Ejected)
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
		s.Frontends = append(s.Frontends, table.HostPort(row.Address, row.FrontendPort))
	}
	serves := row.Internal.Action == string(lb.Balance)
	if s.Action == "" || s.Action == string(lb.Balance) && !serves && row.Kind == string(lb.KindClusterIP) { // one family may lack endpoints
		s.Action, s.Reason = row.Internal.Action, row.Internal.Reason
	}
}

// addBackend notes an endpoint: what the rates do not tell, and that it is there though idle.
func (p *uiPicked) addBackend(row *maps.BackendRow) {
	port, err := portNameOf(row.Service, row.Port, row.Protocol)
	of := p.backends[port]
	if err != nil || of == nil || row.State == stateGone {
		return
	}
	where := netip.AddrPortFrom(row.Address, row.BackendPort)
	if of[where] == nil {
		of[where] = &uiCandidate{gain: maps.BackendGain{Port: port, Address: where}}
	}
	c := of[where]
	c.row, c.gain.Node, c.gain.Zone, c.gain.State = row, row.Node, row.Zone, row.State
}

// document puts it together, in an order of names that does not change with the traffic.
func (p *uiPicked) document(node string, g *maps.Gains) uiDocument {
	zones := topDocumentOf(topZones, node, "name", g)
	doc := uiDocument{Node: node, Zone: g.Zone, Time: zones.Time, Interval: zones.Interval, Matching: p.matching, Services: []uiService{}, Backends: []uiBackend{}, Zones: zones.Rows}
	slices.SortFunc(p.order, lb.PortName.Compare)
	for _, port := range p.order {
		s := p.ports[port]
		if s.Action != "" && s.Action != string(lb.Balance) {
			s.Trouble = append([]string{s.Reason}, s.Trouble...)
		}
		s.Node, s.Time = node, doc.Time
		doc.Services = append(doc.Services, *s)
		for _, b := range p.pickBackends(port, g.Interval) {
			b.Node, b.Time = node, doc.Time
			doc.Backends = append(doc.Backends, b)
		}
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
