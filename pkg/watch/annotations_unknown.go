// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// annotationPrefix is that of all annotations of nearlb.
const annotationPrefix = "nearlb.io/"

// The annotations that are read, by the kind of object that has them.
var (
	ofServices = []string{annotationBalance, annotationNames, annotationEjection, annotationFallback, annotationOffNode, annotationOverflow, annotationResetLost, annotationRetryRefused, annotationSlowStart, annotationKeys, annotationDistribution, annotationUDPRetry}
	ofSlices   = []string{annotationWeight}
)

// unknownAnnotations are those of nearlb's name that nobody reads, as one that was misspelled. They have no effect.
func unknownAnnotations(annotations map[string]string, read []string, kind string) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(name, annotationPrefix) || slices.Contains(read, name) {
			continue
		}
		hint := "nearlb reads " + strings.Join(read, ", ") + " of " + kind
		if near := nearestAnnotation(name, read); near != "" {
			hint = "did you mean " + near + "?"
		} else if slices.Contains(slices.Concat(ofServices, ofSlices), name) {
			hint = "it is not read of " + kind + ": " + hint
		}
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "annotations").Key(name), "has no effect: "+hint))
	}
	return errs
}

// nearestAnnotation is the name that few letters make of another; "" none.
func nearestAnnotation(name string, of []string) string {
	var short []string
	for _, other := range of {
		short = append(short, strings.TrimPrefix(other, annotationPrefix))
	}
	if near := lb.Nearest(strings.TrimPrefix(name, annotationPrefix), short); near != "" {
		return annotationPrefix + near
	}
	return ""
}
