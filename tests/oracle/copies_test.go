// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nearlb/nearlb/tests/worlds"
)

// copyKey names an endpoint as kube-proxy's EndpointSliceCache does.
type copyKey struct {
	namespace, service, port string
	protocol                 corev1.Protocol
	number                   int32
	address                  string
}

// place is where a copy of an endpoint is written.
type place struct{ slice, port, endpoint int }

// settled leaves, of endpoints that are written several times with different conditions, nodes or hints, the copy that counts: the
// better condition; node known; zone known; the lower names. Slices are cut into one for each port and endpoint then.
func settled(w world) world {
	stored := w.asStored()
	losers := map[place]bool{}
	for _, places := range copiesOf(stored) {
		best := slices.MinFunc(places, func(a, b place) int { return stored.compareCopies(a, b) })
		for _, p := range places {
			if stored.compareCopies(best, p) != 0 {
				losers[p] = true
			}
		}
	}
	if len(losers) == 0 {
		return w
	}
	return world{worlds.World{Services: w.Services, Nodes: w.Nodes, NodePortAddresses: w.NodePortAddresses, Slices: cut(stored.Slices, losers)}}
}

func copiesOf(stored world) map[copyKey][]place {
	out := map[copyKey][]place{}
	for i, s := range stored.Slices {
		if !watchesSlice(s) {
			continue
		}
		for j, p := range s.Ports {
			for k, e := range s.Endpoints {
				if p.Port != nil {
					key := copyKey{s.Namespace, s.Labels[discoveryv1.LabelServiceName], *p.Name, *p.Protocol, *p.Port, spelled(e.Addresses[0])}
					out[key] = append(out[key], place{i, j, k})
				}
			}
		}
	}
	return out
}

// cut makes a slice of each port and endpoint that did not lose.
func cut(from []*discoveryv1.EndpointSlice, losers map[place]bool) (out []*discoveryv1.EndpointSlice) {
	for i, s := range from {
		for j := range s.Ports {
			one := s.DeepCopy()
			one.Name += "-" + string(rune('a'+j))
			one.Ports, one.Endpoints = one.Ports[j:j+1], nil
			for k := range s.Endpoints {
				if !losers[place{i, j, k}] {
					one.Endpoints = append(one.Endpoints, s.Endpoints[k])
				}
			}
			out = append(out, one)
		}
	}
	return out
}

// compareCopies orders copies of one endpoint, the one that counts first.
func (w world) compareCopies(x, y place) int {
	a, b := &w.Slices[x.slice].Endpoints[x.endpoint], &w.Slices[y.slice].Endpoints[y.endpoint]
	aNode, bNode := text(a.NodeName), text(b.NodeName)
	aZone, bZone := w.zone(a), w.zone(b)
	aNodes, aZones := hintNames(a.Hints)
	bNodes, bZones := hintNames(b.Hints)
	return cmp.Or(condition(a)-condition(b), unknown(aNode)-unknown(bNode), unknown(aZone)-unknown(bZone),
		cmp.Compare(aNode, bNode), cmp.Compare(aZone, bZone), slices.Compare(aNodes, bNodes), slices.Compare(aZones, bZones))
}

// zone is the endpoint's, else its Node's.
func (w world) zone(e *discoveryv1.Endpoint) string {
	if e.Zone != nil {
		return *e.Zone
	}
	for _, n := range w.Nodes {
		if e.NodeName != nil && n.Name == *e.NodeName {
			return n.Labels[corev1.LabelTopologyZone]
		}
	}
	return ""
}

// condition ranks what a copy says of its endpoint, best first.
func condition(e *discoveryv1.Endpoint) int {
	ready, serving, terminating := is(e.Conditions.Ready, true), is(e.Conditions.Serving, true), is(e.Conditions.Terminating, false)
	switch {
	case ready && !terminating:
		return 0
	case ready:
		return 1
	case serving && terminating:
		return 2
	case !terminating:
		return 3
	}
	return 4
}

func is(set *bool, otherwise bool) bool {
	if set == nil {
		return otherwise
	}
	return *set
}

func text(set *string) string {
	if set == nil {
		return ""
	}
	return *set
}

func unknown(name string) int {
	if name == "" {
		return 1
	}
	return 0
}
