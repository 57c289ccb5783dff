// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// troubles are what the users of Services are to be told: problems of a Service's object, publications that fail, and backends that do not
// answer.
func (s *Status) troubles() (all []watch.Trouble) {
	for _, p := range s.Problems {
		if name, is := serviceOf(p.Object); is {
			t := watch.Trouble{Service: name, Reason: watch.ReasonProblem, Field: p.Field, Message: p.Message}
			if slices.Contains(s.here, p) || p.Field == lb.KindExternalIP.Field() {
				t.Here, t.Same = true, "of a node" // messages are of the node's own addresses: one Event is enough
			}
			all = append(all, t)
		}
	}
	for _, f := range s.Failing {
		all = append(all, watch.Trouble{Service: f.Service, Reason: watch.ReasonPublication, Message: f.Error + "; what was published before stays in force there",
			Same: f.Cause, Here: true})
	}
	return append(all, s.silent()...)
}

// silent is one trouble of each Service with backends that do not answer, however many these are: a zone that is cut off has thousands.
func (s *Status) silent() (all []watch.Trouble) {
	count := map[lb.ServiceName]int{}
	for _, b := range s.Ejected {
		count[b.Service]++
	}
	for _, b := range s.Ejected {
		if n := count[b.Service]; n > 0 {
			all = append(all, watch.Trouble{Service: b.Service, Reason: watch.ReasonEjection, Here: true, Same: "backends",
				Message: fmt.Sprintf("node %s and its clients get no answer of %d backends, such as %s: new connections leave them out there (nearlb backends)", s.Node.Name, n, b.Backend)})
			delete(count, b.Service)
		}
	}
	return all
}

// serviceOf is the Service that a problem is of.
func serviceOf(object string) (name lb.ServiceName, is bool) {
	text, found := strings.CutPrefix(object, "Service ")
	is = found && name.UnmarshalText([]byte(text)) == nil
	return name, is && name.Object() == object
}
