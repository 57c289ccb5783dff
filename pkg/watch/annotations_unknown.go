// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// annotationPrefix is that of all annotations of nearlb.
const annotationPrefix = "nearlb.io/"

// The annotations that are read, by the kind of object that has them.
var (
	ofServices = []string{annotationNames, annotationFallback, annotationKeys, annotationDistribution}
	ofSlices   = []string{annotationWeight}
)

// unknownAnnotations are those of nearlb's name that nobody reads, as one that was misspelled. They have no effect.
func unknownAnnotations(annotations map[string]string, read []string, kind string) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(name, annotationPrefix) || slices.Contains(read, name) {
			continue
		}
		hint := "nearlb reads " + strings.Join(read, ", ") + " of " + kind
		if near := nearest(name, read); near != "" {
			hint = "did you mean " + near + "?"
		} else if slices.Contains(slices.Concat(ofServices, ofSlices), name) {
			hint = "it is not read of " + kind + ": " + hint
		}
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations").Key(name), "has no effect: "+hint))
	}
	return errs
}

// nearest is the name that few letters make of another; "" none.
func nearest(name string, of []string) (near string) {
	name = strings.TrimPrefix(name, annotationPrefix)
	least := len(name)/3 + 2
	for _, other := range of {
		if d := distance(name, strings.TrimPrefix(other, annotationPrefix)); d < least {
			least, near = d, other
		}
	}
	return near
}

// distance is Levenshtein's: how many letters have to be put in, taken out or replaced.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := before
			if a[i] != b[j] {
				changed++
			}
			before = row[j+1]
			row[j+1] = min(changed, row[j]+1, before+1)
		}
	}
	return row[len(b)]
}
