// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Meaning says in words what a word of a kind is on a node; a word without a text stands for itself.
func Meaning(kind explain.Kind, word string, node Node) string {
	return cmp.Or(explain.Text(kind, word, node.Name, node.Zone, node.Region), word)
}

// ReasonText says in words what a reason of an endpoint says in one: why it gets traffic from this node or does not.
func ReasonText(reason lb.Reason, node Node) string {
	if reason == explain.Ejected { // no decision about the objects, and why says it all the same
		return Meaning(explain.State, explain.Ejected, node)
	}
	return Meaning(explain.Reason, string(reason), node)
}

// noteText says in words why a preference for near endpoints is not in force.
func noteText(note lb.Note, node Node) string { return Meaning(explain.Note, string(note), node) }
