// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/plan"
	"github.com/nearlb/nearlb/pkg/table"
)

// whyDocument is `nearlb why -o json`. The first cause is the likely one.
type whyDocument struct {
	Node      string          `json:"node"`
	Client    string          `json:"client"`
	ClientPod string          `json:"client_pod"`
	Service   string          `json:"service"`
	Port      string          `json:"port"`
	Causes    []cause         `json:"causes"`
	Tries     []try           `json:"tries"`
	Endpoints []plan.Endpoint `json:"endpoints"` // none where no agent answers
	Failing   []failingRow    `json:"failing"`   // backends that take connections, and did not answer, refused or are left out
	Drops     []journal.Drop  `json:"drops"`
	Problems  []lb.Problem    `json:"problems"`
	API       []apiDifference `json:"api_differences"` // none where the API server was not asked
	Others    []otherProgram  `json:"others"`          // that see the client's packets, or the answers, as nearlb's do
	zone      string
}

// cause is something that may be wrong, and what to do next.
type cause struct {
	What string `json:"what"` // "endpoints-not-ready"
	Text string `json:"text"`
	Next string `json:"next"`
}

// diagnose says what is wrong, the likely cause first: what makes the tables those of another time, then what the packets met, then
// what was ignored of the Service, then what happened before.
func diagnose(s *seen) whyDocument {
	doc := whyDocument{Client: s.client, ClientPod: s.news.Pod, Service: s.service.String(), Port: s.port, Causes: []cause{},
		Tries: command.List(s.tries), Endpoints: []plan.Endpoint{}, Failing: command.List(s.failing()), Drops: command.List(s.drops), Problems: command.List(slices.Clone(s.news.Problems)), API: command.List(s.differences), Others: command.List(s.others)}
	if s.status != nil {
		doc.Node, doc.zone = s.status.Node.Name, s.status.Node.Zone
	}
	for _, e := range s.news.Endpoints {
		if s.wantsPort(e.Port.Port) {
			doc.Endpoints = append(doc.Endpoints, s.met(plan.NewEndpoint(e)))
		}
	}
	slices.SortFunc(doc.Problems, lb.Problem.Compare)
	doc.Problems = slices.Compact(doc.Problems)
	for _, find := range []func() []cause{s.ofAgent, s.ofPublication, s.ofAPI, s.ofNames, s.ofTries, s.ofBackends, s.ofProblems, s.ofDrops} {
		for _, c := range find() {
			if !slices.ContainsFunc(doc.Causes, func(other cause) bool { return other.What == c.What && other.Text == c.Text }) {
				doc.Causes = append(doc.Causes, c)
			}
		}
	}
	if len(doc.Causes) == 0 {
		doc.Causes = append(doc.Causes, cause{"nothing-wrong", "nearlb sends these connections on, as below",
			"look at the backends themselves: nearlb backends --service " + s.service.String() + ", and at NetworkPolicies between the two"})
		if len(s.others) > 0 {
			doc.Causes[0].Next += ", and at the programs of others, below"
		}
	}
	return doc
}

// missed says that the Service, or its port, is not there: what was asked for matches nothing.
func (d *whyDocument) missed() bool {
	return slices.ContainsFunc(d.Causes, func(c cause) bool { return c.What == "no-such-service" || c.What == "unknown-port" })
}

func (s *seen) ofAgent() []cause {
	next := "start it: kubectl -n kube-system get pods -l app.kubernetes.io/name=nearlb -o wide; nearlb changes says what it did last"
	switch {
	case s.status == nil:
		return []cause{{"agent-dead", fmt.Sprintf("no agent is known here (%s): the tables are as one left them", table.OneLine(fmt.Sprint(s.unknown))), next}}
	case !works(*s.status):
		return []cause{{"agent-dead", "the agent does not follow changes: " + agentText(*s.status, s.now), next}}
	case s.status.State != agent.Serving:
		return []cause{{"agent-starting", "the agent has not published everything yet", "wait, and look at nearlb status"}}
	}
	return nil
}

func (s *seen) ofPublication() (all []cause) {
	if s.status == nil {
		return nil
	}
	for _, f := range s.status.Failing {
		if f.Service == s.service {
			all = append(all, cause{"publication-failed", "what is in force is old: " + f.Error, "nearlb status names the table and the flag"})
		}
	}
	return all
}

// ofNames is about a Service or a port that there is not.
func (s *seen) ofNames() []cause {
	if len(s.frontends) == 0 {
		if s.answered && s.news.Known {
			return []cause{{"no-frontends", "Service " + s.service.String() + " has no address in force", "nearlb status says which other Service has it, or why there is none"}}
		}
		return []cause{{"no-such-service", "no Service " + s.service.String() + " is served here: there is none, or it is headless, an ExternalName, or another proxy's",
			"kubectl -n " + s.service.Namespace + " get service " + s.service.Name}}
	}
	if slices.ContainsFunc(s.frontends, s.wants) {
		return nil
	}
	return []cause{{"unknown-port", fmt.Sprintf("Service %s has no port %s: it has %s; connections to others are refused", s.service, s.port, portsText(s.frontends)),
		"ask for one of those, or add the port to spec.ports"}}
}

// portsText is "http (80/TCP), 53/UDP".
func portsText(rows []maps.FrontendRow) string {
	var all []string
	for _, f := range rows {
		text := fmt.Sprintf("%d/%s", f.FrontendPort, f.Protocol)
		if f.Port != "" {
			text = f.Port + " (" + text + ")"
		}
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}

// ofTries explains each packet that did not go on.
func (s *seen) ofTries() (all []cause) {
	for _, t := range slices.Concat(s.tries, s.refused) {
		if t.Answer.Verdict == "reject" || t.Answer.Verdict == "drop" || t.Answer.Verdict == "pass" && t.Answer.Reason != "other-nat" {
			all = append(all, s.ofTry(t))
		}
	}
	return all
}

func (s *seen) ofTry(t try) cause {
	at := fmt.Sprintf("%s %s/%s", t.Kind, t.Frontend, t.Protocol)
	slicesOf := fmt.Sprintf("kubectl -n %s get endpointslices -l kubernetes.io/service-name=%s", s.service.Namespace, s.service.Name)
	switch t.Answer.Reason {
	case "no-endpoints":
		return s.ofEndpoints(t, at, slicesOf)
	case "no-local-endpoints":
		policy := "internalTrafficPolicy"
		if t.From == "network" || t.Kind != string(lb.KindClusterIP) {
			policy = "externalTrafficPolicy"
		}
		return cause{"no-local-endpoints", fmt.Sprintf("%s drops: spec.%s is Local, and no ready endpoint is on this node", at, policy),
			"run a pod of it here, send clients to a node that has one, or set the policy to Cluster (or annotate nearlb.io/local-fallback: \"true\")"}
	case "source-range":
		return cause{"source-ranges", fmt.Sprintf("%s drops: spec.loadBalancerSourceRanges does not name %s", at, t.Client), "add the client's range, or take the field out"}
	case "no-topology-match":
		return cause{"no-topology-match", at + " refuses: no endpoint matches the Service's topology keys from this node", "end nearlb.io/topology-keys with *, or run an endpoint that is near"}
	}
	text := verdictText(t.Answer.Verdict + "-" + t.Answer.Reason)
	if text == "" {
		text = t.Answer.Verdict + ": " + t.Answer.Reason
	}
	return cause{t.Answer.Reason, at + ": " + text, "nearlb check looks at what this node lacks"}
}

// ofEndpoints tells why a Service has no usable endpoint.
func (s *seen) ofEndpoints(t try, at, slicesOf string) cause {
	reasons, family := map[lb.Reason]int{}, 0
	for _, e := range s.news.Endpoints {
		if e.Address.Addr().Is4() != t.to.Is4() {
			continue
		}
		switch {
		case e.Port.Port == t.Port && e.Port.Protocol.String() == t.Protocol:
			reasons[e.Reason]++
			family++
		case e.Reason == lb.ReasonNoServicePort:
			reasons[e.Reason]++
		}
	}
	pods := "kubectl -n " + s.service.Namespace + " get pods"
	switch {
	case !s.answered:
		return cause{"no-endpoints", at + " refuses: the tables have no usable endpoint for it", slicesOf}
	case family > 0:
		return cause{"endpoints-not-ready", fmt.Sprintf("%s refuses: it has %d endpoints, and none is ready (%s)", at, family, reasonsText(reasons)), pods + ": why are they not ready?"}
	case reasons[lb.ReasonNoServicePort] > 0:
		return cause{"endpoints-of-other-ports", at + " refuses: its endpoints have ports of other names than spec.ports has", "give the ports the same names: " + slicesOf}
	}
	return cause{"no-endpoints", at + " refuses: no EndpointSlice has an endpoint for it", "does spec.selector match the labels of any pod? " + slicesOf}
}

func reasonsText(counts map[lb.Reason]int) string {
	var all []string
	for reason, n := range counts {
		all = append(all, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (s *seen) ofProblems() (all []cause) {
	for _, p := range s.news.Problems {
		what := "problem"
		if strings.HasPrefix(p.Field, "metadata.annotations") {
			what = "wrong-annotation"
		}
		all = append(all, cause{what, p.Object + ": " + p.Field + ": " + p.Message, "mend the object: kubectl -n " + s.service.Namespace + " edit service " + s.service.Name})
	}
	return all
}

func (s *seen) ofDrops() []cause {
	if len(s.drops) == 0 {
		return nil
	}
	last := s.drops[len(s.drops)-1]
	next := "nearlb changes --since 15m --service " + s.service.String() + " says what changed since"
	if !slices.Contains(decided, last.Reason) {
		next = "nearlb explain " + last.Reason + " says what to do; nearlb drops -f shows whether it goes on"
	}
	return []cause{{"dropped-before", fmt.Sprintf("it was refused before: packets in the last 10 minutes: %d, the last one %s (%s: %s)", len(s.drops), ago(last.Time, s.now), last.Verdict, last.Reason), next}}
}

// decided are reasons that only a publication ends or begins.
var decided = []string{"no-endpoints", "no-local-endpoints", "no-topology-match", "source-range", "no-service"}
