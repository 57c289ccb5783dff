// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

const (
	uiLook   = 900 * time.Millisecond // several who look see the same, and cost what one costs
	uiForget = 30 * time.Second       // after that without a question nothing is kept open
)

// uiNode has the page's documents of one node's tables. They are open for as long as somebody looks.
type uiNode struct {
	live    agentFlags
	enter   func(func() error) error // calls a function where the pins are
	packets bool                     // programs may be loaded to send a client's packets through

	mu     sync.Mutex
	meter  *topMeter // nil: nobody looks
	forget *time.Timer
}

func newUINode(live agentFlags, packets bool) *uiNode {
	return &uiNode{live: live, packets: packets, enter: func(f func() error) error { return f() }}
}

// document is the map as of now, its rates those since the look before.
func (n *uiNode) document(filter string) (doc uiDocument, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	err = n.enter(func() error {
		if err := n.look(); err != nil {
			return err
		}
		doc, err = n.describe(filter)
		return err
	})
	return doc, err
}

func (n *uiNode) look() error {
	if n.meter == nil {
		n.meter = &topMeter{options: &topOptions{live: n.live, view: topServices}}
		n.forget = time.AfterFunc(uiForget, n.close)
	}
	n.forget.Reset(uiForget)
	if time.Since(n.meter.gains.Time) < uiLook {
		return nil
	}
	return n.meter.look()
}

// close forgets what was read. The next question begins anew.
func (n *uiNode) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.meter != nil {
		n.forget.Stop()
		n.meter.close()
		n.meter = nil
	}
}

// describe makes the document of what was read last.
func (n *uiNode) describe(filter string) (uiDocument, error) {
	g := &n.meter.gains
	picked := pickForUI(g, n.meter.meter.Endpoints(), filter)
	keep := func(p lb.PortName) bool { return picked.ports[p] != nil }
	reader := n.meter.tables.reader
	for row, err := range reader.FrontendsOf(keep) {
		if err != nil {
			continue // a damaged entry: nearlb services tells of it
		}
		picked.addFrontend(&row)
	}
	for row, err := range reader.BackendsOf(keep) {
		if err != nil {
			return uiDocument{}, err
		}
		picked.addBackend(&row)
	}
	doc := picked.document(n.meter.node, g)
	doc.Agent = n.agent(time.Now())
	return doc, nil
}

// agent says who keeps the tables.
func (n *uiNode) agent(now time.Time) uiAgent {
	status, err := agent.ReadStatus(n.live.lockDir, n.live.pins.pinPath)
	if err != nil {
		return uiAgent{State: "unknown", Text: oneLine(err.Error())}
	}
	a := uiAgent{State: string(status.State), Works: works(status), Text: agentText(status, now)}
	if !status.Written.IsZero() {
		a.Seen = &status.Written
	}
	return a
}

// uiWhy is what is known of one Service: nearlb why, services, backends and zones in one document.
type uiWhy struct {
	whyDocument
	Packets   bool               `json:"packets"` // a client's may be asked for
	Frontends []maps.FrontendRow `json:"frontends"`
	Backends  []maps.BackendRow  `json:"backends"`
	Zones     []zoneRow          `json:"zones"`
}

// why answers for a Service, namespace/name, and with a client for its packets.
func (n *uiNode) why(ctx context.Context, service, client string) (doc uiWhy, err error) {
	var name lb.ServiceName
	if name.UnmarshalText([]byte(service)) != nil {
		return doc, usagef("Service %q: want namespace/name", service)
	}
	if client != "" && !n.packets {
		return doc, errors.New("no programs are loaded here for a client's packets: nearlb why on the node does that")
	}
	n.mu.Lock() // one at a time: it may load programs
	defer n.mu.Unlock()
	err = n.enter(func() error {
		doc, err = lookAtWhy(ctx, &n.live, name, client)
		return err
	})
	doc.Packets = n.packets
	return doc, err
}

func lookAtWhy(ctx context.Context, live *agentFlags, name lb.ServiceName, client string) (doc uiWhy, err error) {
	var s *seen
	if client == "" {
		s, err = lookAtService(ctx, live, name.String())
	} else {
		s, err = look(ctx, live, client, name.String(), "")
	}
	if err != nil {
		return doc, err
	}
	doc = uiWhy{whyDocument: diagnose(s), Frontends: list(s.frontends)}
	doc.Drops = lastDrops(doc.Drops)
	if client == "" {
		doc.Tries = []try{} // those of the tables: no packet was sent
	}
	keep := func(p lb.PortName) bool { return p.Service == name }
	err = live.pins.read(func(r *maps.Reader) error {
		doc.Backends, err = collect(r.BackendsOf(keep), func(maps.BackendRow) bool { return true })
		return err
	})
	if err != nil {
		return doc, err
	}
	zones, err := lookAtZones(ctx, live, &filter{service: name.String(), all: true})
	if err != nil {
		return doc, err
	}
	doc.Zones = list(zones.rows)
	return doc, nil
}

// uiNodes are the nodes of a page: ui.Source of them. What one of several cannot tell is in its place.
type uiNodes []*uiNode

// uiTold is what all nodes tell.
type uiTold struct {
	Nodes []any `json:"nodes"`
}

// Map is ui.Source's.
func (all uiNodes) Map(_ context.Context, filter string) (any, error) {
	return all.tell(func(n *uiNode) (any, error) { return n.document(filter) })
}

// Why is ui.Source's.
func (all uiNodes) Why(ctx context.Context, service, client string) (any, error) {
	return all.tell(func(n *uiNode) (any, error) { return n.why(ctx, service, client) })
}

func (all uiNodes) tell(of func(*uiNode) (any, error)) (any, error) {
	told, failed := uiTold{Nodes: []any{}}, 0
	for _, n := range all {
		doc, err := of(n)
		if err != nil && len(all) == 1 {
			return nil, err
		}
		if err != nil {
			failed++
			doc = map[string]string{"node": n.live.pins.pinPath, "error": oneLine(err.Error())}
		}
		told.Nodes = append(told.Nodes, doc)
	}
	if failed == len(all) {
		return nil, fmt.Errorf("none of %d nodes can be looked at: %v", failed, told.Nodes[0])
	}
	return told, nil
}
