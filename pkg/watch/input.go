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
	s.mu.RLock()
	svc := s.services[name]
	if svc == nil {
		s.mu.RUnlock()
		return lb.Input{}, false
	}
	in := lb.Input{Service: svc.Service, Taken: s.taken(svc.Service), Problems: slices.Clone(svc.problems)}
	owned := s.owned[name]
	in.Endpoints = make([]lb.Endpoint, 0, count(owned))
	labels := s.labelsByNode(svc.TopologyKeys)
	for _, sliceName := range slices.Sorted(maps.Keys(owned)) {
		in.Endpoints = s.appendEndpoints(in.Endpoints, owned[sliceName], labels)
		in.Problems = append(in.Problems, owned[sliceName].problems...)
	}
	if svc.selectorless && len(owned) == 0 {
		in.Problems = append(in.Problems, noSlices(name))
	}
	_, triggered := s.triggers[name]
	s.mu.RUnlock()
	in.Problems = sortProblems(in.Problems)
	if triggered {
		in.Triggered = s.takeTrigger(name)
	}
	return in, true
}

func (s *store) takeTrigger(name lb.ServiceName) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.triggers[name]
	delete(s.triggers, name)
	return t
}

func count(owned map[string]*slice) (n int) {
	for _, slice := range owned {
		n += len(slice.ports) * len(slice.endpoints)
	}
	return n
}

// labelsByNode remembers the labels that the keys name, which are the same for all endpoints of a Node. Without keys there are
// none.
func (s *store) labelsByNode(keys []string) func(node string) lb.Labels {
	if len(keys) == 0 {
		return func(string) lb.Labels { return nil }
	}
	known := map[string]lb.Labels{"": nil}
	return func(node string) lb.Labels {
		labels, ok := known[node]
		if !ok {
			labels = s.labelsOf(node, keys)
			known[node] = labels
		}
		return labels
	}
}

// appendEndpoints makes one lb.Endpoint for each port of each endpoint.
func (s *store) appendEndpoints(out []lb.Endpoint, in *slice, labels func(node string) lb.Labels) []lb.Endpoint {
	for _, e := range in.endpoints {
		node, zone, region := s.locate(e)
		for _, port := range in.ports {
			out = append(out, lb.Endpoint{
				Port:    port.key,
				Address: netip.AddrPortFrom(e.address, port.number),
				Ready:   e.ready, Serving: e.serving, Terminating: e.terminating,
				Node: node, Zone: zone, Region: region,
				NodeHints: e.nodeHints, ZoneHints: e.zoneHints,
				Slice: in.name, Labels: labels(node),
			})
		}
	}
	return out
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
	defer s.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(s.services), lb.ServiceName.Compare)
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
		if slice := s.slices[key]; slice != nil && s.services[slice.owner] == nil {
			out = append(out, slice.problems...)
		}
	}
	return sortProblems(out)
}
