// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Input merges what the objects say about one Service. Endpoints are ordered by slice name and then as written; they and
// the Service share memory with the store and must not be changed.
//
// Triggered is the oldest trigger of the changes since the last call, and is handed out once: who cannot program the
// result keeps it. Times from before the source started, and absent, repeated or future ones, do not count.
func (s *store) Input(name lb.ServiceName) (lb.Input, bool) {
	in, found, triggered := s.look(name)
	if triggered {
		in.Triggered = s.takeTrigger(name)
	}
	return in, found
}

// Look is Input without Triggered, for who only looks: nothing is handed out.
func (s *store) Look(name lb.ServiceName) (lb.Input, bool) {
	in, found, _ := s.look(name)
	return in, found
}

// Annotated lists the Services with annotations of nearlb, by name.
func (s *store) Annotated() []lb.ServiceAnnotations {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := []lb.ServiceAnnotations{}
	for name, svc := range s.services {
		if list := svc.more().annotated; len(list) > 0 {
			all = append(all, lb.ServiceAnnotations{Service: name, Annotations: list})
		}
	}
	slices.SortFunc(all, func(a, b lb.ServiceAnnotations) int { return a.Service.Compare(b.Service) })
	return all
}

// look also says whether there is something to be handed out.
func (s *store) look(name lb.ServiceName) (_ lb.Input, found, triggered bool) {
	s.mu.RLock()
	svc := s.services[name]
	if svc == nil {
		s.mu.RUnlock()
		return lb.Input{}, false, false
	}
	in := lb.Input{Service: svc.full(), Taken: s.taken(svc), Problems: slices.Clone(svc.more().problems)}
	owned := s.owned[name]
	in.Endpoints = make([]lb.Endpoint, 0, count(owned))
	g := gatherer{store: s, keys: in.Service.TopologyKeys}
	for _, slice := range owned {
		in.Endpoints = g.append(in.Endpoints, slice)
		in.Problems = append(in.Problems, slice.problems...)
	}
	if svc.selectorless && len(owned) == 0 {
		in.Problems = append(in.Problems, noSlices(name))
	}
	if in.Service.Overflow.Given {
		if in.Zones = s.zonesNow(); s.allNodes && len(in.Zones) == 0 {
			in.Problems = append(in.Problems, noProcessors(name))
		}
	}
	_, triggered = s.triggers[name]
	s.mu.RUnlock()
	in.Problems = sortProblems(in.Problems)
	return in, true, triggered
}

func (s *store) takeTrigger(name lb.ServiceName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.triggers[name]
	delete(s.triggers, name)
	return t
}

func count(owned []*slice) (n int) {
	for _, slice := range owned {
		n += len(slice.ports) * len(slice.endpoints)
	}
	return n
}

// gatherer makes the endpoints of one Service. It keeps what the last ones had in common, as many endpoints are on few Nodes.
type gatherer struct {
	*store
	keys   []string             // of labels that endpoints are to have
	labels map[string]lb.Labels // by Node
	nodes  lastHints
	zones  lastHints
}

// append makes one lb.Endpoint for each port of each endpoint.
func (g *gatherer) append(out []lb.Endpoint, in *slice) []lb.Endpoint {
	for _, e := range in.endpoints {
		addr := e.Addr()
		at := g.locate(e.At.Value(), addr)
		made := lb.Endpoint{
			Ready: e.Is&lb.IsReady != 0, Serving: e.Is&lb.IsServing != 0, Terminating: e.Is&lb.IsTerminating != 0,
			Node: at.Node, Zone: at.Zone, Region: at.Region,
			NodeHints: g.nodes.split(at.NodeHints), ZoneHints: g.zones.split(at.ZoneHints),
			Slice: in.name, Weight: in.weight, Labels: g.labelsAt(at.Node),
		}
		for _, port := range in.ports {
			made.Port, made.Address = port.key, netip.AddrPortFrom(addr, port.number)
			out = append(out, made)
		}
	}
	return out
}

// lastHints are the hints of one kind of the endpoint before, which the next one mostly shares: those for zones do, and those for
// nodes are single names.
type lastHints struct {
	text  string
	names []string
}

func (l *lastHints) split(text string) []string {
	if text != l.text {
		l.text, l.names = text, split(text)
	}
	return l.names
}

// labelsAt are those labels of a Node that the keys name. Without keys there are none.
func (g *gatherer) labelsAt(node string) lb.Labels {
	if len(g.keys) == 0 || node == "" {
		return nil
	}
	labels, known := g.labels[node]
	if !known {
		if g.labels == nil {
			g.labels = map[string]lb.Labels{}
		}
		labels = g.labelsOf(node, g.keys)
		g.labels[node] = labels
	}
	return labels
}

// noSlices names why Endpoints made by hand have no slices (requirement A14): what the mirroring controller leaves out.
func noSlices(name lb.ServiceName) lb.Problem {
	return lb.Problem{
		Object: objectKey{kindService, name.Namespace, name.Name}.String(), Field: "spec.selector",
		Message: "no selector and no EndpointSlice: if there are Endpoints of this name, they were not mirrored, likely for the label " +
			"endpointslice.kubernetes.io/skip-mirror or the annotation control-plane.alpha.kubernetes.io/leader on them",
	}
}

// Services names what Input has an answer for, sorted.
func (s *store) Services() []lb.ServiceName {
	s.mu.RLock()
	names := slices.AppendSeq(make([]lb.ServiceName, 0, len(s.services)), maps.Keys(s.services))
	s.mu.RUnlock()
	slices.SortFunc(names, lb.ServiceName.Compare)
	return names
}

// ServiceCIDRs are those of the configuration, else of the ServiceCIDR objects, sorted.
func (s *store) ServiceCIDRs() []netip.Prefix {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.ranges)
}

func (s *store) rangesNow() []netip.Prefix {
	if len(s.cfg.ServiceCIDRs) > 0 {
		return inOrder(slices.Clone(s.cfg.ServiceCIDRs))
	}
	var out []netip.Prefix
	for _, cidr := range s.cidrs {
		out = append(out, cidr.prefixes...)
	}
	return inOrder(out)
}

// Announce tells nobody: who writes files is told by status and log.
func (s *store) Announce([]Trouble) {}

// Problems are those of objects that belong to no served Service, sorted.
func (s *store) Problems() []lb.Problem {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []lb.Problem
	for _, err := range s.refusals {
		out = append(out, err.problem())
	}
	for _, err := range s.files {
		out = append(out, err.problem())
	}
	for key := range s.troubled {
		if node := s.nodes[key.name]; key.kind == kindNode && node != nil {
			out = append(out, node.problems...)
		}
		if slice := s.slices[sliceName{key.namespace, key.name}]; key.kind == kindSlice && slice != nil && s.services[slice.owner] == nil {
			out = append(out, slice.problems...)
		}
		if cidr := s.cidrs[key.name]; key.kind == kindServiceCIDR && cidr != nil {
			out = append(out, cidr.problems...)
		}
	}
	for _, problems := range s.unserved {
		out = append(out, problems...)
	}
	return sortProblems(out)
}
