// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Explanation says why a name has the answer that it has.
type Explanation struct {
	Rule    string
	Tiers   map[netip.Addr]string // how near endpoints are, of names that answer with them: node, zone, region, cluster
	LeftOut []LeftOut
}

// LeftOut is an address of a Service that its name does not answer with.
type LeftOut struct {
	Address netip.Addr `json:"data"`
	Reason  string     `json:"reason"` // not-ready, other-tier, other-zone
}

// String is the name of the tier.
func (n nearness) String() string {
	return [...]string{"node", "zone", "region", "cluster"}[n]
}

// Explain says which rule answers a name.
func (r *Responder) Explain(name string) Explanation {
	zone, reverse, ours := r.Zone(name)
	switch {
	case !ours && r.options.Forwarder == nil:
		return Explanation{Rule: "no zone of the cluster, and no upstream"}
	case !ours:
		return Explanation{Rule: "no zone of the cluster: asked of the upstream"}
	case reverse:
		return Explanation{Rule: "reverse name: of a ClusterIP, else of ready endpoints"}
	}
	r.view.mu.RLock()
	defer r.view.mu.RUnlock()
	return r.explain(labelsOf(name, zone))
}

func (r *Responder) explain(labels []string) Explanation {
	q, ok := parse(labels, r.options.Zonal)
	namespace := r.view.namespaces[q.namespace] != nil
	e := r.view.services[lb.ServiceName{Namespace: q.namespace, Name: q.service}]
	switch {
	case len(labels) == 0:
		return Explanation{Rule: "the zone itself"}
	case labels[len(labels)-1] != labelService && labels[len(labels)-1] != labelPod:
		return Explanation{Rule: "not below svc or pod: only dns-version and ns.dns exist"}
	case !ok:
		return Explanation{Rule: "more labels than any name of a Service has"}
	case q.namespace == "":
		return Explanation{Rule: "all Services' or Pods' names are below it"}
	case !namespace:
		return Explanation{Rule: "there is no Namespace " + q.namespace}
	case q.service == "":
		return Explanation{Rule: "Namespace " + q.namespace + ": names are below it"}
	case q.pod:
		return Explanation{Rule: "a pod's address, mode " + string(r.options.Pods)}
	case r.view.doubtful[lb.ServiceName{Namespace: q.namespace, Name: q.service}]:
		return Explanation{Rule: "Service " + q.namespace + "/" + q.service + " is not in force: its packets cannot be served"}
	case e == nil || e.service.Unserved:
		return Explanation{Rule: "there is no Service " + q.namespace + "/" + q.service}
	}
	return r.explainService(q, e)
}

func (r *Responder) explainService(q question, e *entry) Explanation {
	service := "Service " + e.service.Name.String()
	switch {
	case e.service.ExternalName != "":
		return Explanation{Rule: "ExternalName " + service + ": another name"}
	case !e.service.Headless && q.endpoint == "":
		return Explanation{Rule: service + ": its ClusterIPs"}
	}
	out := Explanation{Rule: "headless " + service + ": all ready endpoints, in any order", Tiers: map[netip.Addr]string{}}
	reason := ""
	switch {
	case q.endpoint != "":
		out.Rule = "an endpoint of " + service
	case q.zonal:
		out.Rule, reason = "headless "+service+": endpoints of zone "+q.topologyZone, "other-zone"
	case e.service.Selection == lb.NamesOrdered:
		out.Rule = "headless " + service + ": all ready endpoints, nearest first"
	case e.service.Selection == lb.NamesPrefer:
		out.Rule, reason = "headless "+service+": ready endpoints of the nearest tier that has any", "other-tier"
	case e.service.Selection == lb.NamesPin:
		out.Rule, reason = "headless "+service+": ready endpoints of the node's zone", "other-zone"
	}
	node := r.view.options.Node
	found, _ := q.backends(e, node)
	for _, c := range found {
		if c.address.IsValid() {
			out.Tiers[c.address] = c.nearness(node).String()
		}
	}
	if q.endpoint == "" {
		out.LeftOut = leftOut(e, node, out.Tiers, reason)
	}
	return out
}

// leftOut are the addresses of an entry that were not found. A name of one endpoint leaves nothing out, and an SRV name those of other
// ports, without a reason to tell.
func leftOut(e *entry, node lb.Node, found map[netip.Addr]string, reason string) (all []LeftOut) {
	told := map[netip.Addr]bool{}
	add := func(a netip.Addr, reason string) {
		if _, in := found[a]; !in && !told[a] && reason != "" {
			told[a] = true
			all = append(all, LeftOut{a, reason})
		}
	}
	for _, c := range e.backends(node, choice{}) {
		if c.address.IsValid() {
			add(c.address, reason)
		}
	}
	for _, slice := range e.service.Slices {
		for _, in := range slice.Endpoints {
			if in.Addr().IsValid() && in.Is&lb.IsReady == 0 {
				add(in.Addr(), "not-ready")
			}
		}
	}
	return all
}
