// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
	"github.com/nearlb/nearlb/tests/worlds"
)

// askNearlb reads the world as `nearlb plan` does and decides it.
func askNearlb(w world) (answers, error) {
	out := newAnswers()
	cfg := watch.NodeConfig{Name: worlds.Self, NodePortAddresses: w.NodePortAddresses}
	source, err := watch.Load([]string{"-"}, bytes.NewReader(w.Text()), cfg, nil)
	if err != nil {
		return nil, err
	}
	for _, name := range source.Services() {
		in, _ := source.Input(name)
		out.decision(decide.Decide(in, source.Node()))
		for _, v4 := range []bool{true, false} {
			if count, ok := decide.LocalReady(in, source.Node(), v4); ok && in.Service.HealthCheckPort != 0 {
				out.health(name.String(), v4, in.Service.HealthCheckPort, count)
			}
		}
	}
	return out, nil
}

func (a answers) decision(d lb.Decision) {
	kinds := map[lb.Kind]int{lb.KindClusterIP: clusterIP, lb.KindLoadBalancer: loadBalancer, lb.KindExternalIP: externalIP, lb.KindNodePort: nodePort}
	for _, f := range d.Frontends {
		a.add(frontend{
			service: d.Service.String(), port: f.Port.Port, protocol: f.Key.Protocol.String(),
			kind: kinds[f.Kind], ip: f.Key.Address.Addr(), number: int(f.Key.Address.Port()),
			internal: sideOf(f.Internal), external: sideOf(f.External),
			affinity: int(f.Affinity / time.Second), ranges: f.SourceRanges,
		})
	}
	type port struct {
		lb.PortName
		v4 bool
	}
	reachable := map[port][]string{}
	for _, b := range d.Backends {
		if len(b.Lists) > 0 {
			key := port{lb.PortName{Service: d.Service, Port: b.Key.Port.Name, Protocol: b.Key.Port.Protocol}, b.Key.Address.Addr().Is4()}
			reachable[key] = append(reachable[key], b.Key.Address.String())
		}
	}
	for key, endpoints := range reachable {
		a.reachable(key.String(), key.v4, endpoints)
	}
}

func sideOf(s lb.Side) string {
	if s.Action != lb.Balance {
		return string(s.Action)
	}
	var endpoints []string
	for _, t := range s.Tiers {
		for _, b := range t.Backends {
			endpoints = append(endpoints, b.Address.String())
		}
	}
	return fmt.Sprintf("balance %s", list(endpoints))
}
