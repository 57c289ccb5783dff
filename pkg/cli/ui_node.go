// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/ui"
)

const (
	uiLook     = 900 * time.Millisecond // several who look see the same, and cost what one costs
	uiForget   = 30 * time.Second       // after that without a question nothing is kept open
	uiPatience = 10 * time.Second       // an answer must come before the servers' write timeout
)

// uiNode has the page's documents of one node's tables. They are open for as long as somebody looks.
type uiNode struct {
	live    agentFlags
	enter   func(func() error) error // calls a function where the pins are
	packets bool                     // programs may be loaded to send a client's packets through
	pause   time.Duration            // for so long a document is what the next one who asks gets

	turns  *ui.Turns // of what follows
	meter  *topMeter // nil: nobody looks
	forget *time.Timer
	maps   uiAnswers[uiDocument]
	whys   uiAnswers[uiWhy]
}

func newUINode(live agentFlags, packets bool) *uiNode {
	return &uiNode{live: live, packets: packets, pause: uiLook, turns: ui.NewTurns(uiPatience), enter: func(f func() error) error { return f() },
		maps: uiAnswers[uiDocument]{}, whys: uiAnswers[uiWhy]{}}
}

// uiAnswers are documents that were given of late, by what was asked for.
type uiAnswers[T any] map[string]uiAnswer[T]

type uiAnswer[T any] struct {
	doc T
	at  time.Time
}

// answered gives the document that another one got a moment ago, and makes one where there is none, where the pins are.
func answered[T any](ctx context.Context, n *uiNode, all uiAnswers[T], question string, make func() (T, error)) (doc T, err error) {
	if err := n.turns.Take(ctx); err != nil {
		return doc, err
	}
	defer n.turns.Leave()
	for of, known := range all {
		if time.Since(known.at) >= n.pause {
			delete(all, of)
		}
	}
	if known, is := all[question]; is {
		return known.doc, nil
	}
	err = n.turns.Work(ctx, func() error {
		return n.enter(func() (err error) { doc, err = make(); return err })
	})
	if err == nil {
		all[question] = uiAnswer[T]{doc, time.Now()}
	}
	return doc, err
}

// document is the map as of now, its rates those since the look before.
func (n *uiNode) document(ctx context.Context, filter string) (doc uiDocument, err error) {
	return answered(ctx, n, n.maps, filter, func() (uiDocument, error) {
		if err := n.look(); err != nil {
			return uiDocument{}, err
		}
		return n.describe(filter)
	})
}

func (n *uiNode) look() error {
	if n.meter == nil {
		n.meter = &topMeter{options: &topOptions{live: n.live, view: topServices}}
		n.forget = time.AfterFunc(uiForget, n.close)
	}
	n.forget.Reset(uiForget)
	if time.Since(n.meter.gains.Time) < n.pause {
		return nil
	}
	return n.meter.look()
}

// close forgets what was read, unless very many ask. The next question begins anew.
func (n *uiNode) close() {
	if n.turns.Take(context.Background()) != nil {
		return
	}
	defer n.turns.Leave()
	if n.meter != nil {
		n.forget.Stop()
		n.meter.close()
		n.meter = nil
	}
	clear(n.maps)
	clear(n.whys)
}

// describe makes the document of what was read last.
func (n *uiNode) describe(filter string) (doc uiDocument, err error) {
	seen := uiSeen{gains: &n.meter.gains, endpoints: n.meter.meter.Endpoints()}
	if seen.refusing, err = n.meter.meter.Refusing(); err != nil {
		return doc, err
	}
	picked := seen.pick(filter)
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
			return doc, err
		}
		picked.addBackend(&row)
	}
	doc = picked.document(n.meter.node, seen.gains)
	doc.Agent = n.agent(time.Now())
	return doc, nil
}

// agent says who keeps the tables.
func (n *uiNode) agent(now time.Time) uiAgent {
	status, err := agent.ReadStatus(n.live.lockDir, n.live.pins.pinPath)
	if err != nil {
		return uiAgent{State: "unknown", Text: table.OneLine(err.Error())}
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
		return doc, command.Usagef("Service %q: want namespace/name", service)
	}
	if client != "" && !n.packets {
		return doc, errors.New("no programs are loaded here for a client's packets: nearlb why on the node does that")
	}
	return answered(ctx, n, n.whys, name.String()+" "+client, func() (uiWhy, error) {
		doc, err := lookAtWhy(ctx, &n.live, name, client)
		if err != nil {
			return uiWhy{}, err
		}
		doc.Packets = n.packets
		return doc, nil
	})
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
	doc = uiWhy{whyDocument: diagnose(s), Frontends: command.List(s.frontends)}
	doc.Drops = lastDrops(doc.Drops)
	doc.Backends = command.List(s.backends)
	owner := tableOwner{live: live, notes: notesOf(io.Discard, &watchFlags{}, "")}
	owner.look(io.Discard, 0)
	zones, err := lookAtZones(ctx, &owner, &filter{service: name.String(), all: true})
	if err != nil {
		return doc, err
	}
	doc.Zones = command.List(zones.rows)
	return doc, nil
}

// uiNodes are the nodes of a page: ui.Source of them. What one of several cannot tell is in its place.
type uiNodes []*uiNode

// uiTold is what all nodes tell.
type uiTold struct {
	Nodes []any `json:"nodes"`
}

// Map is ui.Source's.
func (all uiNodes) Map(ctx context.Context, filter string) (any, error) {
	return all.tell(func(n *uiNode) (any, error) { return n.document(ctx, filter) })
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
			doc = map[string]string{"node": n.live.pins.pinPath, "error": table.OneLine(err.Error())}
		}
		told.Nodes = append(told.Nodes, doc)
	}
	if failed == len(all) {
		return nil, fmt.Errorf("none of %d nodes can be looked at: %v", failed, told.Nodes[0])
	}
	return told, nil
}
