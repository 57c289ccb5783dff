// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/pkg/watch/clientset"
)

// apiDifference is an endpoint that the API server's objects, as they are now, treat otherwise than this node does.
type apiDifference struct {
	Port     string         `json:"port"`
	Protocol lb.Protocol    `json:"protocol"`
	Address  netip.AddrPort `json:"address"`
	API      string         `json:"api"`  // the reason that it is in or out by the objects; "absent": no slice has it
	Here     string         `json:"here"` // likewise by what is in force
}

// apiRounds and apiPause are how often, and how far apart, both sides are asked while they differ: a change that was on its way is none.
const (
	apiRounds = 3
	apiPause  = 200 * time.Millisecond
)

// askAPI compares what is in force with what the API server says. again reads what is in force once more.
func (s *seen) askAPI(ctx context.Context, kubeconfig string, again func() error) error {
	access, err := watch.Login{Kubeconfig: kubeconfig, UserAgent: "nearlb-why"}.Config()
	if err != nil {
		return command.UsageError{Err: err}
	}
	client, err := clientset.For(access)
	if err != nil {
		return command.UsageError{Err: err}
	}
	if s.status == nil {
		s.unasked = errors.New("no agent's status says which node this is")
		return nil
	}
	for round := range apiRounds {
		if round > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(apiPause):
			}
			if err := again(); err != nil {
				return err
			}
		}
		source, err := watch.AskAPI(ctx, client, s.service, s.nodeConfig())
		if s.unasked = err; err != nil {
			return nil
		}
		if s.compareAPI(source); len(s.differences) == 0 && !s.unpublished {
			return nil
		}
	}
	return nil
}

// readAgain reads the tables and asks the agent once more.
func (s *seen) readAgain(ctx context.Context, live *agentFlags) error {
	_, client := s.clientOf(s.client)
	s.askAgent(ctx, live, client)
	s.frontends, s.backends = nil, nil
	return live.pins.read(func(r *tables.Reader) error { return s.find(r, s.service.String()) })
}

// nodeConfig is the agent's, as far as its status says it.
func (s *seen) nodeConfig() watch.NodeConfig {
	cfg := watch.NodeConfig{Name: s.status.Node.Name, Zone: s.status.Node.Zone, ProxyName: s.status.Proxy}
	for _, text := range s.status.Node.Addresses {
		if ip, err := netip.ParseAddr(text); err == nil {
			cfg.IPs = append(cfg.IPs, ip)
		}
	}
	return cfg
}

// standing is whether an endpoint gets new connections, and why; the zero value: there is no such endpoint.
type standing struct {
	in  bool
	why string
}

// String is "in (all)", "out (not-ready)" or "absent".
func (s standing) String() string {
	switch {
	case s.in:
		return "in (" + s.why + ")"
	case s == standing{}:
		return "absent"
	}
	return "out (" + s.why + ")"
}

// compareAPI notes each endpoint of the port that was asked for that is in on one side and out on the other, and a Service that one side
// alone has.
func (s *seen) compareAPI(source watch.Source) {
	in, known := source.Input(s.service)
	s.unpublished, s.differences = known && len(s.frontends) == 0, nil
	api, here := map[lb.BackendKey]standing{}, s.inForce()
	if known {
		for _, e := range decide.Decide(in, source.Node()).Endpoints {
			api[lb.BackendKey{Port: e.Port.Key(), Address: e.Address}] = standing{e.Selected, string(e.Reason)}
		}
	}
	all := maps.Clone(here)
	maps.Copy(all, api)
	for k := range all {
		if api[k].in != here[k].in && s.wantsPort(k.Port.Name) {
			s.differences = append(s.differences, apiDifference{k.Port.Name, k.Port.Protocol, k.Address, api[k].String(), here[k].String()})
		}
	}
	slices.SortFunc(s.differences, func(a, b apiDifference) int {
		return cmp.Or(strings.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), a.Address.Compare(b.Address))
	})
}

// inForce are the endpoints that the tables give connections, and, with its reasons, those that an agent that answers does not.
func (s *seen) inForce() map[lb.BackendKey]standing {
	all := map[lb.BackendKey]standing{}
	for _, e := range s.news.Endpoints {
		if !e.Selected {
			all[lb.BackendKey{Port: e.Port.Key(), Address: e.Address}] = standing{false, string(e.Reason)}
		}
	}
	for _, r := range s.backends {
		if protocol, err := lb.ParseProtocol(r.Protocol); err == nil && len(r.Lists) > 0 {
			port := lb.PortKey{Name: r.Port, Protocol: protocol}
			all[lb.BackendKey{Port: port, Address: netip.AddrPortFrom(r.Address, r.BackendPort)}] = standing{true, r.State}
		}
	}
	return all
}

// ofAPI is about what the API server says otherwise.
func (s *seen) ofAPI() []cause {
	next := "nearlb status says whether the agent follows the API server; nearlb changes -f shows what it takes from it"
	switch {
	case s.unasked != nil:
		return []cause{{"api-not-asked", table.OneLine(s.unasked.Error()), "can this node reach the API server that --kubeconfig names?"}}
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
