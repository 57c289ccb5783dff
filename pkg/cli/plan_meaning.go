// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
)

// meaning says in words what a word of a kind is on a node; a word without a text stands for itself.
func meaning(kind explain.Kind, word string, node planNode) string {
	return cmp.Or(explain.Text(kind, word, node.Name, node.Zone, node.Region), word)
}

// reasonText says in words what a reason of an endpoint says in one: why it gets traffic from this node or does not.
func reasonText(reason lb.Reason, node planNode) string {
	if reason == stateEjected { // no decision about the objects, and why says it all the same
		return meaning(explain.State, stateEjected, node)
	}
	return meaning(explain.Reason, string(reason), node)
}

// noteText says in words why a preference for near endpoints is not in force.
func noteText(note lb.Note, node planNode) string { return meaning(explain.Note, string(note), node) }

// verdictText says in words what a verdict says in one (as bpf.Verdict.Spelled).
func verdictText(name string) string { return explain.Text(explain.Verdict, name, "", "", "") }
