// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	handle "unique" // the package has a function of that name

	"github.com/nearlb/nearlb/pkg/lb"
)

// nodeLabels are all labels of a Node, sorted by key. Which of them Services ask for is not known when a Node comes, so all are
// kept; a text is kept once, however many Nodes have it, as a cluster has thousands of Nodes with the same few dozen keys and
// values.
type nodeLabels []nodeLabel

type nodeLabel struct{ key, value handle.Handle[string] }

func newNodeLabels(in map[string]string) nodeLabels {
	out := make(nodeLabels, 0, len(in))
	for _, label := range lb.NewLabels(in) {
		out = append(out, nodeLabel{handle.Make(label.Key), handle.Make(label.Value)})
	}
	return out
}

func (l nodeLabels) get(key string) (string, bool) {
	wanted := handle.Make(key)
	for _, label := range l {
		if label.key == wanted {
			return label.value.Value(), true
		}
	}
	return "", false
}

// all are the labels as lb has them.
func (l nodeLabels) all() lb.Labels {
	out := make(lb.Labels, 0, len(l))
	for _, label := range l {
		out = append(out, lb.Label{Key: label.key.Value(), Value: label.value.Value()})
	}
	return out
}

// differences are the keys that came, went or have another value.
func (l nodeLabels) differences(o nodeLabels) (keys []string) {
	for _, label := range l {
		if !slices.Contains(o, label) {
			keys = append(keys, label.key.Value())
		}
	}
	for _, label := range o {
		if !slices.Contains(l, label) {
			keys = append(keys, label.key.Value())
		}
	}
	return keys
}
