// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/nearlb/nearlb/pkg/lb"
)

// The annotations that are nearlb's own, of a Service where nothing else is said.
const (
	annotationBalance      = "nearlb.io/balance"
	annotationKeys         = "nearlb.io/topology-keys"
	annotationDistribution = "nearlb.io/traffic-distribution"
	annotationFallback     = "nearlb.io/local-fallback"
	annotationNames        = "nearlb.io/dns"
	annotationEjection     = "nearlb.io/ejection"
	annotationOffNode      = "nearlb.io/off-node"
	annotationOverflow     = "nearlb.io/overflow"
	annotationResetLost    = "nearlb.io/reset-lost"
	annotationRetryRefused = "nearlb.io/retry-refused"
	annotationSlowStart    = "nearlb.io/slow-start"
	annotationUDPRetry     = "nearlb.io/udp-retry"
	annotationWeight       = "nearlb.io/weight" // of an EndpointSlice
)

// maxTopologyKeys is the limit that spec.topologyKeys of Kubernetes 1.17 had.
const maxTopologyKeys = 16

// readAnnotations puts what nearlb's annotations ask for into the Service. One that breaks a rule has no effect: the Service
// is served as if it were not there (requirement B8). The problems come in the order of the annotations' names, those that nobody reads last.
func readAnnotations(out *serviceMore, svc *corev1.Service) (errs field.ErrorList) {
	out.Balancing, errs = balancing(svc)
	_, wrong := nameSelection(svc) // names alone are made of it
	errs = append(errs, wrong...)
	ejection, wrong := ejection(svc)
	out.Ejection, errs = ejection, append(errs, wrong...)
	fallback, wrong := localFallback(svc)
	out.LocalFallback, errs = fallback, append(errs, wrong...)
	offNode, wrong := offNode(svc)
	out.OffNode, errs = offNode, append(errs, wrong...)
	keys, wrong := topologyKeys(svc)
	out.TopologyKeys, errs = keys, append(errs, wrong...)
	distribution, wrong := distribution(svc, len(keys) > 0)
	out.Distribution, errs = distribution, append(errs, wrong...)
	overflow, wrong := overflow(svc, out)
	out.Overflow, errs = overflow, append(errs, wrong...)
	keepLost, wrong := keepLost(svc)
	out.KeepLost, errs = keepLost, append(errs, wrong...)
	retry, wrong := retryRefused(svc)
	out.RetryRefused, errs = retry, append(errs, wrong...)
	slowStart, wrong := slowStart(svc)
	out.SlowStart, errs = slowStart, append(errs, wrong...)
	udpRetry, wrong := udpRetry(svc)
	out.UDPRetry, errs = udpRetry, append(errs, wrong...)
	return append(errs, unknownAnnotations(svc.Annotations, ofServices, "a Service")...)
}

// annotationsOf are those of nearlb's annotations that frontends may depend on: those that the problems are about have no effect.
func annotationsOf(svc *corev1.Service, problems []lb.Problem) (all []lb.Annotation) {
	for _, name := range slices.Sorted(maps.Keys(svc.Annotations)) {
		value, path := annotation(svc, name)
		out := lb.Annotation{Name: name, Value: value}
		if at := slices.IndexFunc(problems, func(p lb.Problem) bool { return p.Field == path.String() }); at >= 0 {
			out.Problem = problems[at].Message
		} else if value == "" || name == annotationNames || !slices.Contains(ofServices, name) {
			continue
		}
		all = append(all, out)
	}
	return all
}

// annotation is a trimmed value, and its place for errors.
func annotation(svc *corev1.Service, name string) (string, *field.Path) {
	return strings.TrimSpace(svc.Annotations[name]), field.NewPath("metadata", "annotations").Key(name)
}

// ofAnnotation tells whether a problem's field is an annotation: of all there are, nearlb's alone are judged.
func ofAnnotation(field string) bool { return strings.HasPrefix(field, "metadata.annotations[") }

func localFallback(svc *corev1.Service) (bool, field.ErrorList) {
	value, path := annotation(svc, annotationFallback)
	if value == "" {
		return false, nil
	}
	return value == "true", oneOf(path, value, "true", "false")
}

// keepLost tells that connections whose backend is gone are left alone: annotation nearlb.io/reset-lost, which is true unless set.
func keepLost(svc *corev1.Service) (bool, field.ErrorList) {
	value, path := annotation(svc, annotationResetLost)
	if value == "" {
		return false, nil
	}
	return value == "false", oneOf(path, value, "true", "false")
}

// retryRefused tells that a connection which a backend refuses goes to the next one: annotation nearlb.io/retry-refused.
func retryRefused(svc *corev1.Service) (bool, field.ErrorList) {
	value, path := annotation(svc, annotationRetryRefused)
	if value == "" {
		return false, nil
	}
	return value == "true", oneOf(path, value, "true", "false")
}

// balancing tells how the backend of a new connection is chosen: annotation nearlb.io/balance.
func balancing(svc *corev1.Service) (lb.Balancing, field.ErrorList) {
	value, path := annotation(svc, annotationBalance)
	if value == "" {
		return "", nil
	}
	wants := lb.Balancing(value)
	if errs := oneOf(path, wants, lb.Balancings()...); len(errs) > 0 || wants == lb.BalanceMaglev {
		return "", errs
	}
	return wants, nil
}

// maxUDPRetry is what the tables have room for.
const maxUDPRetry = 255

// udpRetry reads "3": after how many datagrams of a flow that nobody answered the next backend gets those that follow.
func udpRetry(svc *corev1.Service) (uint8, field.ErrorList) {
	value, path := annotation(svc, annotationUDPRetry)
	if value == "" {
		return 0, nil
	}
	count, err := strconv.ParseUint(value, 10, 8)
	switch {
	case err != nil || count == 0:
		return 0, field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be a number from 1 to %d, such as 3", maxUDPRetry))}
	case !slices.ContainsFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolUDP }):
		return 0, field.ErrorList{field.Forbidden(path, "has no effect without a port of protocol UDP")}
	}
	return uint8(count), nil
}

func ejection(svc *corev1.Service) (lb.Ejection, field.ErrorList) {
	value, path := annotation(svc, annotationEjection)
	if value == "" {
		return "", nil
	}
	if errs := oneOf(path, lb.Ejection(value), lb.Ejections()...); len(errs) > 0 {
		return "", errs
	}
	return lb.Ejection(value), nil
}

func offNode(svc *corev1.Service) (lb.OffNode, field.ErrorList) {
	value, path := annotation(svc, annotationOffNode)
	if value == "" {
		return "", nil
	}
	if errs := oneOf(path, lb.OffNode(value), lb.OffNodes()...); len(errs) > 0 {
		return "", errs
	}
	return lb.OffNode(value), nil
}

// nameSelection says which endpoints the name of a headless Service answers with: the annotation, else all of them, nearest first where
// the Service has a trafficDistribution.
func nameSelection(svc *corev1.Service) (lb.NameSelection, field.ErrorList) {
	otherwise := lb.NamesShuffled
	if svc.Spec.TrafficDistribution != nil {
		otherwise = lb.NamesOrdered
	}
	value, path := annotation(svc, annotationNames)
	if value == "" {
		return otherwise, nil
	}
	if errs := oneOf(path, lb.NameSelection(value), lb.NamesOrdered, lb.NamesPrefer, lb.NamesPin); len(errs) > 0 {
		return otherwise, errs
	}
	return lb.NameSelection(value), nil
}

// topologyKeys reads the ordered keys, separated by commas. The rules are those of spec.topologyKeys of Kubernetes 1.17.
func topologyKeys(svc *corev1.Service) ([]string, field.ErrorList) {
	value, path := annotation(svc, annotationKeys)
	if value == "" {
		return nil, nil
	}
	keys := strings.Split(value, ",")
	for i := range keys {
		keys[i] = strings.TrimSpace(keys[i])
	}
	errs := tooMany(path, len(keys), maxTopologyKeys)
	if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		errs = append(errs, field.Forbidden(path, "may not be used with externalTrafficPolicy Local"))
	}
	for i, key := range keys {
		switch {
		case slices.Contains(keys[:i], key):
			errs = append(errs, field.Duplicate(path, key))
		case key != lb.AnyTopology:
			errs = append(errs, validateLabelKey(path, key)...)
		case i < len(keys)-1:
			errs = append(errs, field.Invalid(path, value, `"*" must be the last key`))
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return keys, nil
}

// validateLabelKey says the first of the rules of label keys that is broken.
func validateLabelKey(path *field.Path, key string) field.ErrorList {
	messages := validation.IsQualifiedName(key)
	return invalid(path, key, messages[:min(1, len(messages))])
}

func distribution(svc *corev1.Service, keyed bool) (lb.Distribution, field.ErrorList) {
	value, path := annotation(svc, annotationDistribution)
	if value == "" {
		return "", nil
	}
	if errs := oneOf(path, lb.Distribution(value), lb.PreferSameNode, lb.PreferSameZone); len(errs) > 0 {
		return "", errs
	}
	if keyed {
		return "", field.ErrorList{field.Forbidden(path, "has no effect beside "+annotationKeys)}
	}
	return lb.Distribution(value), nil
}

// maxOverflow is an overflow that no zone comes to: a tenth of the cluster's endpoints for all of its clients.
const maxOverflow = 900

// overflow reads "20%". It shares out what a preference for zones keeps in them, and has no effect without one.
func overflow(svc *corev1.Service, as *serviceMore) (lb.Overflow, field.ErrorList) {
	value, path := annotation(svc, annotationOverflow)
	if value == "" {
		return lb.Overflow{}, nil
	}
	number, percent := strings.CutSuffix(value, "%")
	margin, err := strconv.ParseUint(number, 10, 16)
	if !percent || err != nil || margin > maxOverflow {
		return lb.Overflow{}, field.ErrorList{field.Invalid(path, value, fmt.Sprintf(`must be a number from 0 to %d and "%%", such as "20%%"`, maxOverflow))}
	}
	onNode := string(lb.PreferSameNode)
	switch {
	case len(as.TopologyKeys) > 0:
		return lb.Overflow{}, field.ErrorList{field.Forbidden(path, "has no effect beside "+annotationKeys)}
	case as.Distribution == lb.PreferSameNode, as.Distribution == "" && deref(svc.Spec.TrafficDistribution) == onNode:
		return lb.Overflow{}, field.ErrorList{field.Forbidden(path, "has no effect beside "+onNode+": it shares out zones' connections")}
	case as.Distribution == "" && !wantsHints(svc):
		return lb.Overflow{}, field.ErrorList{field.Forbidden(path, "has no effect without a preference for zones: spec.trafficDistribution or "+annotationDistribution)}
	}
	return lb.Overflow{Percent: uint16(margin), Given: true}, nil
}

// The bounds of a slow start: its steps are published one by one.
const (
	shortestSlowStart = time.Second
	longestSlowStart  = time.Hour
)

// slowStart reads "30s".
func slowStart(svc *corev1.Service) (time.Duration, field.ErrorList) {
	value, path := annotation(svc, annotationSlowStart)
	if value == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < shortestSlowStart || d > longestSlowStart {
		return 0, field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be a time from %v to %v, such as 30s", shortestSlowStart, longestSlowStart))}
	}
	return d, nil
}

// weight is how many of the new connections the endpoints of a slice get. One that is no weight has no effect.
func weight(slice *discoveryv1.EndpointSlice) (lb.Weight, *field.Error) {
	text, given := slice.Annotations[annotationWeight]
	if !given {
		return lb.Weight{}, nil
	}
	value, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return lb.Weight{}, field.Invalid(field.NewPath("metadata", "annotations").Key(annotationWeight), text,
			fmt.Sprintf("must be a number from 0 to 65535; these endpoints count as %d", lb.DefaultWeight))
	}
	return lb.Weight{Value: uint16(value), Given: true}, nil
}

// wantsHints tells that the slice controller was asked for hints: by the field, or by an annotation that it reads.
func wantsHints(svc *corev1.Service) bool {
	asked := func(name string) bool { return slices.Contains([]string{"Auto", "auto"}, svc.Annotations[name]) }
	return svc.Spec.TrafficDistribution != nil || asked(corev1.AnnotationTopologyMode) || asked(corev1.DeprecatedAnnotationTopologyAwareHints)
}
