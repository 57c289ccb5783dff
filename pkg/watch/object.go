// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// kind is the kind of an object that is read.
type kind string

const (
	kindService     kind = "Service"
	kindSlice       kind = "EndpointSlice"
	kindNode        kind = "Node"
	kindOthers      kind = "Nodes" // a resource: the Nodes other than the own one; each is a Node
	kindServiceCIDR kind = "ServiceCIDR"
)

// objectKey names an object. Namespace is empty for Nodes and ServiceCIDRs.
type objectKey struct {
	kind      kind
	namespace string
	name      string
}

// String is how objects are named to people: "EndpointSlice default/web-abc", "Node n1".
func (k objectKey) String() string {
	if k.namespace == "" {
		return string(k.kind) + " " + k.name
	}
	return string(k.kind) + " " + k.namespace + "/" + k.name
}

// problem is one of the object that is served nevertheless. It is made where a check failed, as paths cost more than checks.
func (k objectKey) problem(field string, value any, rule string) lb.Problem {
	text := limited(fmt.Sprint(value))
	if s, ok := value.(string); ok {
		text = shown(s)
	}
	return lb.Problem{Object: k.String(), Field: field, Message: text + ": " + rule}
}

func (k objectKey) compare(o objectKey) int {
	return cmp.Or(cmp.Compare(k.kind, o.kind), cmp.Compare(k.namespace, o.namespace), cmp.Compare(k.name, o.name))
}

// object is an API object after the converter: one of the four values, or none for an object that is read and has no
// effect (a headless Service, a slice that carries the headless label). What is wrong with a headless Service is told nevertheless.
type object struct {
	key     objectKey
	service *service
	slice   *slice
	node    *node
	cidrs   *serviceCIDR
	naming  *naming      // where names are wanted
	wrong   []lb.Problem // of a Service without frontends
}

// refused makes an ObjectError of the first of errs; nil if there is none.
func refused(key objectKey, errs field.ErrorList) *ObjectError {
	if len(errs) == 0 {
		return nil
	}
	problem := describe(errs[0])
	if len(errs) > 1 {
		problem += fmt.Sprintf(" (and %d more)", len(errs)-1)
	}
	return &ObjectError{Object: key.String(), Field: errs[0].Field, Value: badValue(errs[0]), Problem: problem}
}

// describe says what the rule is, without the field and the value.
func describe(e *field.Error) string {
	what := strings.ToLower(e.Type.String())
	switch {
	case e.Detail == "":
		return what
	case e.Type == field.ErrorTypeInvalid, e.Type == field.ErrorTypeForbidden:
		return e.Detail
	}
	return what + ", " + e.Detail
}

// badValue is the offending value as one short word, empty where there is none to show.
func badValue(e *field.Error) string {
	if e.Type == field.ErrorTypeRequired || e.Type == field.ErrorTypeForbidden || e.BadValue == nil {
		return ""
	}
	if s, ok := e.BadValue.(string); ok {
		return shown(s)
	}
	return limited(fmt.Sprint(e.BadValue))
}

// shown is a text of an object for people.
func shown(s string) string { return limited(fmt.Sprintf("%q", s)) }

func limited(text string) string {
	if limit := 120; len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..." // it may end in the middle of a character
	}
	return text
}

// problem is what a field's error means for an object that is served nevertheless.
func problem(key objectKey, e *field.Error) lb.Problem {
	message := describe(e)
	if value := badValue(e); value != "" {
		message = value + ": " + message
	}
	return lb.Problem{Object: key.String(), Field: e.Field, Message: message}
}

// problem says of a refused object or file what is wrong with it.
func (e *ObjectError) problem() lb.Problem {
	object, message := e.Object, e.Problem
	if e.Value != "" {
		message = e.Value + ": " + message
	}
	switch {
	case object == "":
		object = "file " + e.File
	case e.File != "":
		message = e.File + ": " + message
	}
	return lb.Problem{Object: object, Field: e.Field, Message: message}
}

func sortProblems(problems []lb.Problem) []lb.Problem {
	slices.SortFunc(problems, func(a, b lb.Problem) int {
		return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.Field, b.Field), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(problems)
}
