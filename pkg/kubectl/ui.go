// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/ui"
)

const (
	uiAddress = "127.0.0.1:8249"
	uiLook    = 2 * time.Second  // several who look see the same, and the nodes are asked once
	uiAgents  = 30 * time.Second // after that, agents' pods may be others
)

// page serves the page of nearlb ui over all nodes, until ctx ends.
func (a *asked) page(ctx context.Context) error {
	if len(a.command) > 1 {
		return usagef("ui takes --listen, --node and -o json alone: the page has a filter")
	}
	address := cmp.Or(a.listen, uiAddress)
	if err := ui.CheckLocal(address); err != nil {
		return usagef("--listen %w", err)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	fmt.Fprintf(a.out, "http://%s/\n", listener.Addr())
	return ui.Serve(ctx, listener, ui.Handler(&nodesPage{asked: a, turns: ui.NewTurns(time.Minute)}), 0)
}

// nodesPage is ui.Source of what the nodes' agents say.
type nodesPage struct {
	*asked

	turns  *ui.Turns // of what follows
	agents []agent
	found  time.Time // when agents were; zero: they are to be found again
	last   any
	filter string // of last
	at     time.Time
}

// Map is ui.Source's.
func (p *nodesPage) Map(ctx context.Context, filter string) (any, error) {
	if err := p.turns.Take(ctx); err != nil {
		return nil, err
	}
	defer p.turns.Leave()
	if p.last != nil && p.filter == filter && time.Since(p.at) < uiLook {
		return p.last, nil
	}
	doc, err := p.of(ctx, "--filter="+filter)
	if err == nil {
		p.last, p.filter, p.at = doc, filter, time.Now()
	}
	return doc, err
}

// Why is ui.Source's. No client's packets are asked for: they come in at one node, and `kubectl nearlb why` finds it.
func (p *nodesPage) Why(ctx context.Context, service, client string) (any, error) {
	if client != "" {
		return nil, fmt.Errorf("kubectl nearlb why %s %s asks the node of this client", client, service)
	}
	if err := p.turns.Take(ctx); err != nil {
		return nil, err
	}
	defer p.turns.Leave()
	return p.of(ctx, "--service="+service)
}

// of puts together what nearlb ui prints on each node.
func (p *nodesPage) of(ctx context.Context, flag string) (any, error) {
	if time.Since(p.found) > uiAgents {
		agents, err := p.cluster.find(ctx, p.request)
		if err != nil {
			return nil, err
		}
		p.agents, p.found = agents, time.Now()
	}
	answers := p.ask(ctx, p.agents, []string{"ui", "-o", "json", flag}, nil)
	nodes, failed := []any{}, []string{}
	for _, answer := range answers {
		if doc, err := answer.document(); err != nil {
			p.found = time.Time{}
			failed = append(failed, err.Error())
			nodes = append(nodes, map[string]string{"node": answer.node, "error": err.Error()})
		} else {
			nodes = append(nodes, doc)
		}
	}
	if len(failed) == len(nodes) {
		slices.Sort(failed)
		return nil, fmt.Errorf("none of %d nodes can be asked: %s", len(nodes), strings.Join(slices.Compact(failed), "; "))
	}
	return map[string]any{"nodes": nodes}, nil
}

// document is what the node printed.
func (answer *answer) document() (json.RawMessage, error) {
	switch {
	case answer.err != nil:
		return nil, answer.err
	case answer.status != 0:
		return nil, errors.New(cmp.Or(answer.said, fmt.Sprintf("nearlb ended with %d", answer.status)))
	case !json.Valid(answer.out.Bytes()):
		return nil, errors.New("what it says is no JSON")
	}
	return answer.out.Bytes(), nil
}
