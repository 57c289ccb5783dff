// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"slices"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The labels below a cluster zone that mean something.
const (
	labelService = "svc"
	labelPod     = "pod"
	labelVersion = "dns-version"
	labelZonal   = "_zone"  // zone.pin._zone.service.namespace.svc (CoreDNS, option zonal)
	labelPin     = "pin"    // that zone's endpoints or none
	labelPrefer  = "prefer" // that zone's endpoints, else all
)

// SchemaVersion is the version of the specification, as TXT dns-version says it.
const SchemaVersion = "1.1.0"

// versionTTL is the lifetime of that record in seconds: the specification's example.
const versionTTL = 28800

// match is what there is under a name. The candidates are the match's own.
type match struct {
	doubt      bool        // nothing is known: it is a name of a Service that is not in force
	exists     bool        // there is such a name, whatever it answers with
	candidates []candidate // its addresses
	ordered    bool        // the candidates are in the order of the answer, nearest first
	owner      lb.ServiceName
	alias      string // what an ExternalName stands for, an absolute name
	text       string // of dns-version
	server     bool   // the candidates are those of the zone's own name server
}

// question is a name below a cluster zone, taken apart (docs of CoreDNS's plugin, "Name parsing").
type question struct {
	pod                   bool
	namespace, service    string
	endpoint              string
	port, protocol        string
	sub                   bool // something stands left of the service
	topologyZone          string
	topologyPrefer, zonal bool
}

// parse takes the labels left of the zone, lower case; false: no such name can be.
func parse(labels []string, zonal bool) (q question, ok bool) {
	last := len(labels) - 1
	switch labels[last] {
	case labelPod:
		q.pod = true
	case labelService:
	default:
		return q, false
	}
	if last--; last < 0 {
		return q, true
	}
	q.namespace = labels[last]
	if last--; last < 0 {
		return q, true
	}
	q.service = labels[last]
	q.sub = last > 0
	switch left := labels[:last]; len(left) {
	case 0:
	case 1:
		q.endpoint = left[0]
	case 2: // underscores are optional, as CoreDNS has it
		q.port, q.protocol = strings.TrimPrefix(left[0], "_"), strings.TrimPrefix(left[1], "_")
		q.sub = q.port != "" || q.protocol != "" // "_._" is nothing (CoreDNS)
	default:
		return q, zonal && !q.pod && q.topology(left)
	}
	return q, true
}

// topology reads zone.pin._zone and zone.prefer._zone; a zone may have dots.
func (q *question) topology(left []string) bool {
	last := len(left) - 1
	if left[last] != labelZonal {
		return false
	}
	q.zonal, q.topologyPrefer = true, left[last-1] == labelPrefer
	q.topologyZone = strings.Join(left[:last-1], ".")
	return q.topologyPrefer || left[last-1] == labelPin
}

// find says what there is under a name of a cluster zone. The labels are those left of the zone, lower case. The view is locked by the
// caller.
func (r *Responder) find(labels []string) match {
	switch {
	case len(labels) == 0:
		return match{exists: true}
	case len(labels) == 1 && labels[0] == labelVersion:
		return match{exists: true, text: SchemaVersion}
	case len(labels) == 2 && labels[0] == "ns" && labels[1] == "dns":
		return match{exists: true, server: true}
	}
	q, ok := parse(labels, r.options.Zonal)
	switch {
	case !ok:
		return match{}
	case q.namespace == "":
		return match{exists: true}
	case r.view.namespaces[q.namespace] == nil, q.pod && r.options.Pods == PodsDisabled:
		return match{}
	case q.service == "":
		return match{exists: true}
	case q.pod:
		return r.findPod(q)
	}
	return r.findService(q)
}

func (r *Responder) findService(q question) match {
	name := lb.ServiceName{Namespace: q.namespace, Name: q.service}
	e := r.view.services[name]
	if e == nil || e.service.Unserved {
		return match{doubt: r.view.doubtful[name]}
	}
	m := match{owner: name, ordered: e.service.Selection != lb.NamesShuffled}
	switch {
	case q.zonal && !e.service.Headless:
	case e.service.ExternalName != "":
		if external := e.external(); !q.sub && external != "" {
			m.exists, m.alias = true, external
		}
	case e.service.Headless || q.endpoint != "":
		m.candidates, m.exists = q.backends(e, r.view.options.Node)
		m.exists = m.exists || len(m.candidates) > 0
	case r.options.IgnoreEmpty && !e.hasReady():
	case len(e.service.ClusterIPs) == 0: // a Service that was given no address yet
		m.exists = !q.sub
	default:
		m.candidates = slices.DeleteFunc(e.frontends(), func(c candidate) bool { return !c.isOf(q.port, q.protocol) })
		m.exists = len(m.candidates) > 0
	}
	return m
}

// backends are the endpoints that a name asks for; exists says that the name is there without any.
func (q question) backends(e *entry, node lb.Node) (found []candidate, exists bool) {
	switch {
	case q.zonal:
		all := e.backends(node, choice{})
		found = inZone(all, q.topologyZone)
		if len(found) == 0 && q.topologyPrefer {
			found = all
		}
		return found, true
	case q.endpoint != "":
		return e.backends(node, q.isEndpoint(e.podNames)), false
	case q.port == "" && q.protocol == "":
		found = e.backends(node, choice{})
	default:
		found = e.backends(node, choice{port: func(c candidate) bool { return c.isOf(q.port, q.protocol) }})
	}
	return e.selected(found, node.Zone), len(found) > 0
}

// isEndpoint is the endpoints that have the name that was asked for. It is compared with what their names are made of, as to make each
// would take longer.
func (q question) isEndpoint(podNames bool) choice {
	var wanted [16]byte
	var text [64]byte
	if a, is := undashed(q.endpoint); is && string(dashed(a.AppendTo(text[:0]), 0)) == q.endpoint { // there are other ways to write it
		wanted = a.As16()
	}
	return choice{endpoint: func(slice *lb.NamedSlice, i int) bool {
		if given := given(slice, i, podNames); given != "" {
			return strings.EqualFold(given, q.endpoint)
		}
		if target := slice.Target(i); target != "" {
			return strings.EqualFold(string(dashed([]byte(target), 0)), q.endpoint)
		}
		return wanted == slice.Endpoints[i].Address
	}}
}

// findPod reads a pod's address from its name. Labels left of it mean nothing, as CoreDNS has it.
func (r *Responder) findPod(q question) match {
	address, ok := undashed(q.service)
	if !ok {
		return match{}
	}
	m := match{exists: true, candidates: []candidate{{address: address}}}
	if r.options.Pods == PodsInsecure {
		return m
	}
	for _, pod := range r.view.pods[address] {
		if pod.Namespace == q.namespace {
			return m
		}
	}
	return match{}
}

// labelsOf are the labels of a name left of a zone, lower case; the name is in the zone.
func labelsOf(name, zone string) []string {
	labels := wire.SplitDomainName(strings.ToLower(name))
	return labels[:len(labels)-wire.CountLabel(zone)]
}
