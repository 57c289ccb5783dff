// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

// failingRow is a backend that connections go to, or would go to, and that did not take some of late.
type failingRow struct {
	Service          string `json:"service"`
	Port             string `json:"port"`
	Backend          string `json:"backend"` // address:port
	Node             string `json:"node"`
	Open             uint64 `json:"open"`
	Refused          uint64 `json:"refused"`
	Unanswered       uint64 `json:"unanswered"`
	LastReplySeconds *int64 `json:"lastReplySeconds,omitempty"`
	EjectedUntil     string `json:"ejectedUntil,omitempty"`
	EjectedBecause   string `json:"ejectedBecause,omitempty"`
}

// failing are those of the ports that were asked for. An endpoint that no list has gets no connections, whatever it did before.
func (s *seen) failing() (all []failingRow) {
	for _, r := range s.backends {
		if len(r.Lists) == 0 || !s.wantsPort(r.Port) || r.Refused+r.Unanswered == 0 && r.EjectedUntil == "" {
			continue
		}
		all = append(all, failingRow{r.Service, r.Port, table.HostPort(r.Address, r.BackendPort) + "/" + r.Protocol, r.Node, r.Open, r.Refused, r.Unanswered,
			r.LastReplySeconds, r.EjectedUntil, r.EjectedBecause})
	}
	return all
}

// met is an endpoint as connections meet it: what was decided of the objects, but for those that do not answer and are left out.
func (s *seen) met(e plan.Endpoint) plan.Endpoint {
	if e.Selected && slices.ContainsFunc(s.backends, func(r maps.BackendRow) bool {
		return r.EjectedUntil != "" && r.Service == e.Service && r.Port == e.Port && r.Protocol == e.Protocol.String() && r.Address == e.Address && r.BackendPort == e.EndpointPort
	}) {
		e.Selected, e.Reason = false, explain.Ejected
	}
	return e
}

// wantsPort tells whether a port of the Service, by its name, was asked for.
func (s *seen) wantsPort(name string) bool {
	return s.port == "" || s.port == name || slices.ContainsFunc(s.frontends, func(f maps.FrontendRow) bool { return f.Port == name && s.wants(f) })
}

// recentReply is how many seconds ago a backend that answers others answered at the most: less than it takes until a connection counts as
// not answered, so that a backend that just died is none of these.
const recentReply = 5

// ofBackends tells which of the backends do not take their connections: first those that new ones still go to.
func (s *seen) ofBackends() (all []cause) {
	var silent, refusing, ejected []failingRow
	for _, r := range s.failing() {
		switch {
		case r.EjectedUntil != "":
			ejected = append(ejected, r)
		case r.Unanswered >= r.Refused:
			silent = append(silent, r)
		default:
			refusing = append(refusing, r)
		}
	}
	if len(silent) > 0 {
		all = append(all, cause{"backends-do-not-answer", backendsText(silent) + " did not answer some of their last connections: " + countsText(silent), s.nextOfSilent(silent)})
	}
	if len(refusing) > 0 {
		all = append(all, cause{"backends-refuse", backendsText(refusing) + " refused some of their last connections: " + countsText(refusing),
			"does a process of the pod listen on the port that targetPort names, on all addresses? " + s.podsOf()})
	}
	if len(ejected) > 0 {
		all = append(all, cause{"backends-ejected", "new connections leave out " + backendsText(ejected) + ": " + ejected[0].EjectedBecause,
			"their pods' logs; nearlb backends readmit takes one back, which an answer does as well"})
	}
	return all
}

// nextOfSilent goes by whether somebody else is answered.
func (s *seen) nextOfSilent(silent []failingRow) string {
	for _, r := range silent {
		if r.LastReplySeconds == nil || *r.LastReplySeconds > recentReply {
			return "does the pod run, and does its node reach it? " + s.podsOf()
		}
	}
	return "they answer others: does a NetworkPolicy keep this client off? kubectl -n " + s.service.Namespace + " get networkpolicies"
}

func (s *seen) podsOf() string {
	return "kubectl -n " + s.service.Namespace + " get pods -o wide"
}

// namedBackends is how many are named; of a Service whose pods are all dead there may be thousands.
const namedBackends = 3

func backendsText(rows []failingRow) string {
	var names []string
	for _, r := range rows {
		if name := r.Backend + " on " + table.OrDash(r.Node); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if more := len(names) - namedBackends; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedBackends], ", "), more)
	}
	return strings.Join(names, ", ")
}

// countsText is "3 refused, 2 unanswered, the last answer was 5s ago".
func countsText(rows []failingRow) string {
	var refused, unanswered uint64
	var last *int64
	for _, r := range rows {
		refused, unanswered = refused+r.Refused, unanswered+r.Unanswered
		if r.LastReplySeconds != nil && (last == nil || *r.LastReplySeconds < *last) {
			last = r.LastReplySeconds
		}
	}
	var texts []string
	if refused > 0 {
		texts = append(texts, fmt.Sprintf("%d refused", refused))
	}
	if unanswered > 0 {
		texts = append(texts, fmt.Sprintf("%d unanswered", unanswered))
	}
	return strings.Join(append(texts, "the last answer to anybody: "+lastReply(maps.BackendRow{LastReplySeconds: last})), ", ")
}
