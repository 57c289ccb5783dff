// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// apiDifference is an endpoint that the API server's objects, as they are now, treat otherwise than this node does.
type apiDifference struct {
	Port     string         `json:"port"`
	Protocol lb.Protocol    `json:"protocol"`
	Address  netip.AddrPort `json:"address"`
	API      string         `json:"api"`  // the reason that it is in or out by the objects; "absent": no slice has it
	Here     string         `json:"here"` // likewise by what is in force
}

// absent is in the place of a reason where there is no such endpoint.
const absent = "absent"

// apiRounds and apiPause are how often, and how far apart, both sides are asked while they differ: a change that was on its way is none.
const (
	apiRounds = 3
	apiPause  = 200 * time.Millisecond
)

// askAPI compares what is in force with what the API server says.
func (s *seen) askAPI(ctx context.Context, live *agentFlags, kubeconfig string) error {
	client, err := watch.Login{Kubeconfig: kubeconfig, UserAgent: "nearlb-why"}.Client()
	if err != nil {
		return usageError{err}
	}
	for round := range apiRounds {
		source, err := watch.AskAPI(ctx, client, s.service, s.nodeConfig(), len(s.frontends) > 0)
		if err != nil {
			s.unasked = err
			return nil
		}
		if round > 0 {
			_, client := s.clientOf(s.client)
			s.askAgent(ctx, live, client)
		}
		s.compareAPI(source)
		if len(s.differences) == 0 && !s.unpublished {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(apiPause):
		}
	}
	return nil
}

// nodeConfig is the agent's, as far as its status says it.
func (s *seen) nodeConfig() watch.NodeConfig {
	cfg := watch.NodeConfig{}
	if s.status != nil {
		cfg.Name, cfg.Zone = s.status.Node.Name, s.status.Node.Zone
	}
	return cfg
}

// compareAPI notes each endpoint that is in on one side and out on the other, and a Service that one side alone has.
func (s *seen) compareAPI(source watch.Source) {
	type key struct {
		port lb.PortName
		at   netip.AddrPort
	}
	api, here := map[key]string{}, s.inForce()
	in, known := source.Input(s.service)
	s.unpublished = known && len(s.frontends) == 0
	s.differences = nil
	if known {
		for _, e := range decide.Decide(in, source.Node()).Endpoints {
			api[key{e.Port, e.Address}] = side(e.Selected, string(e.Reason))
		}
	}
	ours := map[key]string{}
	for _, e := range here {
		ours[key{e.Port, e.Address}] = side(e.Selected, string(e.Reason))
	}
	all := map[key]bool{}
	for k := range api {
		all[k] = true
	}
	for k := range ours {
		all[k] = true
	}
	for k := range all {
		there, here := cmp.Or(api[k], absent), cmp.Or(ours[k], absent)
		if takes(there) != takes(here) {
			s.differences = append(s.differences, apiDifference{k.port.Port, k.port.Protocol, k.at, there, here})
		}
	}
	slices.SortFunc(s.differences, func(a, b apiDifference) int {
		return cmp.Or(strings.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address))
	})
}

// side is "in (all)" or "out (not-ready)".
func side(selected bool, reason string) string {
	if selected {
		return "in (" + reason + ")"
	}
	return "out (" + reason + ")"
}

func takes(side string) bool { return strings.HasPrefix(side, "in ") }

// inForce are the endpoints as the agent has them, or, of an agent that does not answer, those that the tables give connections.
func (s *seen) inForce() []lb.EndpointReason {
	if s.answered {
		return s.news.Endpoints
	}
	var all []lb.EndpointReason
	for _, r := range s.backends {
		protocol, err := lb.ParseProtocol(r.Protocol)
		if err != nil || len(r.Lists) == 0 {
			continue
		}
		all = append(all, lb.EndpointReason{Port: lb.PortName{Service: s.service, Port: r.Port, Protocol: protocol},
			Address: netip.AddrPortFrom(r.Address, r.BackendPort), Selected: true, Reason: lb.Reason(r.State)})
	}
	return all
}

// ofAPI is about what the API server says otherwise.
func (s *seen) ofAPI() []cause {
	next := "nearlb status says whether the agent follows the API server; nearlb changes -f shows what it takes from it"
	switch {
	case s.unasked != nil:
		return []cause{{"api-not-asked", oneLine(s.unasked.Error()), "can this node reach the API server that --kubeconfig names?"}}
	case s.unpublished:
		return []cause{{"differs-from-api", "the API server has Service " + s.service.String() + ", and no address of it is in force here", next}}
	case len(s.differences) == 0:
		return nil
	}
	var texts []string
	for _, d := range s.differences[:min(len(s.differences), namedBackends)] {
		texts = append(texts, fmt.Sprintf("%s/%s is %s in the API and %s here", d.Address, d.Protocol, d.API, d.Here))
	}
	if more := len(s.differences) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return []cause{{"differs-from-api", "what is in force is not what the API server says: " + strings.Join(texts, "; "), next}}
}
