// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// resource is a kind as the client reads it.
type resource struct {
	kind    kind
	example runtime.Object
	options metav1.ListOptions // the selectors
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch   func(context.Context, metav1.ListOptions) (apiwatch.Interface, error)
	course  *course
}

func newResource[L runtime.Object](k kind, example runtime.Object, client kube.Lists[L], options metav1.ListOptions) resource {
	return resource{
		kind: k, example: example, options: options, watch: client.Watch, course: &course{},
		list: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
	}
}

// listWatch adds the selectors to each request and notes how it ends.
func (r resource) listWatch(c *cluster) *cache.ListWatch {
	selected := func(options metav1.ListOptions) metav1.ListOptions {
		options.LabelSelector, options.FieldSelector = r.options.LabelSelector, r.options.FieldSelector
		return options
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			r.course.listing()
			inTime, cancel := context.WithTimeout(ctx, listTime)
			defer cancel()
			list, err := r.list(inTime, selected(options))
			r.note(ctx, c, options, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
			watch, err := r.lastingWatch(ctx, selected(options))
			r.note(ctx, c, options, err)
			return watch, err
		},
	}
}

// note passes on what says something of the server's health. A version of the past (410) only makes the reflector list
// again, and a server that cannot stream a list (before Kubernetes 1.32) is asked for a plain one next.
func (r resource) note(ctx context.Context, c *cluster, options metav1.ListOptions, err error) {
	streamed := options.SendInitialEvents != nil
	switch {
	case err == nil && streamed: // it has begun, and is complete when the sink gets it
	case err == nil:
		c.outage.worked(r.kind)
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), streamed && apierrors.IsInvalid(err):
	default:
		c.failed(r.kind, err)
	}
}

// sink is the store of a reflector: it passes on what the reflector's events and lists say.
type sink struct {
	*cluster
	kind   kind
	recent recent // of the reflector's goroutine alone
}

// arrival is an object of the API server after the converter. A streamed list is gathered as such, so that the objects as they came
// are garbage at once.
type arrival struct {
	object
	uid types.UID    // of a refused object
	err *ObjectError // why it is refused
}

// arrive converts an object, unless that was done when it was gathered; false for what is no object.
func (s *sink) arrive(in any) (*arrival, bool) {
	if a, done := in.(*arrival); done {
		return a, true
	}
	typed, ok := in.(runtime.Object)
	if !ok {
		return nil, false
	}
	o, err := meta.Accessor(in)
	if err != nil {
		return nil, false
	}
	a := &arrival{}
	if a.object, a.err = s.convert(typed); a.err != nil {
		a.key, a.uid = s.keyOf(o), o.GetUID()
	}
	return a, true
}

// Transformer converts before a streamed list is gathered.
func (s *sink) Transformer() cache.TransformFunc {
	return func(in any) (any, error) {
		if a, ok := s.arrive(in); ok {
			return a, nil
		}
		return in, nil
	}
}

func (s *sink) Add(in any) error {
	if key, late := s.key(in); late || s.resourceOf(key) != s.kind {
		return nil
	}
	if a, ok := s.arrive(in); ok && s.accepted(a) {
		s.update([]object{a.object}, nil)
	}
	return nil
}

func (s *sink) Update(in any) error { return s.Add(in) }

func (s *sink) Delete(in any) error {
	if key, late := s.key(in); !late && s.resourceOf(key) == s.kind {
		s.update(nil, []objectKey{key})
	}
	return nil
}

// key names the object of an event, and tells whether the event is older than what is known of it.
func (s *sink) key(in any) (key objectKey, late bool) {
	o, err := meta.Accessor(in)
	if err != nil {
		return key, true
	}
	key = s.keyOf(o)
	if s.recent.late(key, o.GetResourceVersion()) {
		s.log.Debug("an event of the past is ignored", "object", key.String(), "version", o.GetResourceVersion())
		return key, true
	}
	return key, false
}

func (s *sink) keyOf(o metav1.Object) objectKey {
	if s.kind == kindOthers {
		return objectKey{kindNode, "", o.GetName()}
	}
	return objectKey{s.kind, o.GetNamespace(), o.GetName()}
}

// Replace takes a complete list: what is not in it is gone. Until it comes nothing is.
func (s *sink) Replace(list []any, version string) error {
	s.recent.relisted(version)
	s.outage.worked(s.kind)
	gone := map[objectKey]bool{}
	for _, key := range s.keys(s.kind) {
		gone[key] = true
	}
	puts := make([]object, 0, len(list))
	for _, in := range list {
		a, ok := s.arrive(in)
		if !ok || s.resourceOf(a.key) != s.kind {
			continue
		}
		delete(gone, a.key)
		if s.accepted(a) {
			puts = append(puts, a.object)
		}
	}
	drops := make([]objectKey, 0, len(gone))
	for key := range gone {
		drops = append(drops, key)
	}
	s.listed(s.kind, puts, drops)
	return nil
}

// Resync has no meaning without a queue.
func (s *sink) Resync() error { return nil }

// accepted notes objects that are refused; the last good state stays in force.
func (s *sink) accepted(a *arrival) bool {
	if a.err == nil {
		return true
	}
	if s.refuse(a.key, a.uid, a.err) {
		s.log.Warn("object is refused: what it said before stays in force", "error", a.err)
	}
	return false
}
