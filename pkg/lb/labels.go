// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"cmp"
	"slices"
	"strings"
)

// Label is one label of a Node.
type Label struct{ Key, Value string }

// Labels are labels of a Node, sorted by key, each key once.
type Labels []Label

// NewLabels sorts a map.
func NewLabels(all map[string]string) Labels {
	out := make(Labels, 0, len(all))
	for key, value := range all {
		out = append(out, Label{key, value})
	}
	slices.SortFunc(out, Label.Compare)
	return out
}

// Get is a label's value, which may be empty, and whether there is such a label.
func (l Labels) Get(key string) (value string, found bool) {
	at, found := slices.BinarySearchFunc(l, key, func(label Label, key string) int { return strings.Compare(label.Key, key) })
	if !found {
		return "", false
	}
	return l[at].Value, true
}

// Compare orders by the first label that differs; the shorter comes first.
func (l Labels) Compare(o Labels) int { return slices.CompareFunc(l, o, Label.Compare) }

// Compare orders by key, then value.
func (l Label) Compare(o Label) int {
	return cmp.Or(strings.Compare(l.Key, o.Key), strings.Compare(l.Value, o.Value))
}
