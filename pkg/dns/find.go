// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
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

// match is what there is under a name.
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
		if !q.sub && e.external != "" {
			m.exists, m.alias = true, e.external
		}
	case e.service.Headless || q.endpoint != "":
		m.candidates, m.exists = q.backends(e, r.view.options.Node.Zone)
		m.exists = m.exists || len(m.candidates) > 0
	case r.options.IgnoreEmpty && len(e.backends) == 0:
	case len(e.frontends) == 0: // a Service that was given no address yet
		m.exists = !q.sub
	default:
		m.candidates = q.ofPort(e.frontends)
		m.exists = len(m.candidates) > 0
	}
	return m
}

// backends are the endpoints that a name asks for; exists says that the name is there without any.
func (q question) backends(e *entry, zone string) (found []candidate, exists bool) {
	switch {
	case q.zonal:
		found = inZone(e.backends, q.topologyZone)
		if len(found) == 0 && q.topologyPrefer {
			found = e.backends
		}
		return found, true
	case q.endpoint != "":
		for _, c := range e.backends {
			if strings.EqualFold(c.host, q.endpoint) {
				found = append(found, c)
			}
		}
		return found, false
	}
	all := q.ofPort(e.backends)
	return e.selected(all, zone), len(all) > 0
}

// ofPort leaves those of the port and protocol that the name has.
func (q question) ofPort(all []candidate) []candidate {
	if q.port == "" && q.protocol == "" {
		return all
	}
	var found []candidate
	for _, c := range all {
		if (q.port == "" || strings.EqualFold(c.port, q.port)) && (q.protocol == "" || c.protocol == q.protocol) {
			found = append(found, c)
		}
	}
	return found
}

// findPod reads a pod's address from its name. Labels left of it mean nothing, as CoreDNS has it.
func (r *Responder) findPod(q question) match {
	text := strings.ReplaceAll(q.service, "-", ":")
	if strings.Count(q.service, "-") == 3 && !strings.Contains(q.service, "--") {
		text = strings.ReplaceAll(q.service, "-", ".")
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return match{}
	}
	address = address.Unmap()
	m := match{exists: true, candidates: []candidate{{address: address}}}
	if r.options.Pods == PodsInsecure {
		return m
	}
	for pod := range r.view.pods[address] {
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
