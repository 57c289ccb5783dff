// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// How long requests may take. A connection that is dead is noticed by HTTP/2's pings within 45 seconds; these are for a server, or
// something in between, that lives and says nothing.
const (
	listTime  = 90 * time.Second // the API server itself gives a list one minute
	watchTime = 20 * time.Second // until a watch begins; client-go tries ten times in it
	overtime  = 30 * time.Second // over the time that the API server was asked to end a watch in
)

// After a watch that was cut off, objects are listed again some time later, for the API server may have another history than
// before, restored from a backup, in which versions mean other changes. The times spread the nodes' lists.
const (
	relistFirst  = 2 * time.Minute
	relistLatest = 10 * time.Minute
)

// course is what a kind's watches went through.
type course struct {
	mu       sync.Mutex
	due      time.Time // when the last watch was to end by itself
	relistAt time.Time // zero: nothing gives reason to
	fresh    bool      // a list was the last that was asked for
}

// listing notes that the objects are listed anyway.
func (c *course) listing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due, c.relistAt, c.fresh = time.Time{}, time.Time{}, true
}

// resumes tells whether a watch goes on from another one.
func (c *course) resumes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.fresh
}

// begin notes that a watch begins, and gives the time to relist at, if any: the one before it was cut off.
func (c *course) begin(options metav1.ListOptions) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.Add(overtime).Before(c.due) && c.relistAt.IsZero() {
		c.relistAt = now.Add(relistFirst + rand.N(relistLatest-relistFirst))
	}
	c.due, c.fresh = now.Add(timeOf(options)), false
	return c.relistAt
}

func timeOf(options metav1.ListOptions) time.Duration {
	if options.TimeoutSeconds == nil {
		return relistLatest
	}
	return time.Duration(*options.TimeoutSeconds) * time.Second
}

// lastingWatch begins a watch that ends by itself, whatever the server does.
func (r resource) lastingWatch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	streamed := options.SendInitialEvents != nil
	if streamed {
		r.course.listing()
	} else if r.course.resumes() {
		if err := r.checkHistory(ctx, options); err != nil {
			return nil, err
		}
	}
	relist := r.course.begin(options)
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(watchTime, cancel)
	w, err := r.watch(ctx, options)
	switch inTime := late.Stop(); {
	case err == nil && (!inTime || isEmpty(w)):
		w.Stop()
		err = errNoWatch
	case err != nil && !inTime:
		err = fmt.Errorf("no answer within %v: %w", watchTime, err)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	l := &lasting{Interface: w, out: make(chan apiwatch.Event), done: make(chan struct{})}
	go func() {
		defer cancel()
		l.copy(time.Now().Add(timeOf(options)+overtime), relist)
	}()
	return l, nil
}

// errNoWatch: client-go makes an empty watch of a request that timed out or was cut off.
var errNoWatch = errors.New("the API server does not answer a watch, or breaks it off at once")

func isEmpty(w apiwatch.Interface) bool {
	return reflect.TypeOf(w) == reflect.TypeOf(apiwatch.NewEmptyWatch())
}

// checkHistory fails if a watch is to go on from a version that the API server has not reached: it was restored from an earlier
// backup. It would keep silent until its versions have grown that far, about all that changes meanwhile.
func (r resource) checkHistory(ctx context.Context, options metav1.ListOptions) error {
	from := number(options.ResourceVersion)
	if from == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	list, err := r.list(ctx, metav1.ListOptions{Limit: 1, LabelSelector: options.LabelSelector, FieldSelector: options.FieldSelector})
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return nil // it refuses lists: the watch itself says what else is wrong
	}
	if err != nil {
		return err
	}
	if at := versionOf(list); at != 0 && at < from {
		return apierrors.NewResourceExpired(fmt.Sprintf("the API server is at version %d, before %d: it has another history now", at, from))
	}
	return nil
}

func versionOf(list runtime.Object) uint64 {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return 0
	}
	return number(accessor.GetResourceVersion())
}

// lasting is a watch with an end.
type lasting struct {
	apiwatch.Interface
	out  chan apiwatch.Event
	stop sync.Once
	done chan struct{}
}

func (l *lasting) ResultChan() <-chan apiwatch.Event { return l.out }

// Stop ends it; whoever stops it reads no further.
func (l *lasting) Stop() {
	l.stop.Do(func() { close(l.done); l.Interface.Stop() })
}

// copy passes events on until the watch ends, or is stopped, or is overdue. At the time to relist it says that its history is over.
func (l *lasting) copy(end, relist time.Time) {
	defer close(l.out)
	over := time.NewTimer(time.Until(end))
	defer over.Stop()
	var again <-chan time.Time
	if !relist.IsZero() {
		timer := time.NewTimer(time.Until(relist))
		defer timer.Stop()
		again = timer.C
	}
	for {
		var event apiwatch.Event
		select {
		case e, open := <-l.Interface.ResultChan():
			if !open {
				return
			}
			event = e
		case <-again:
			again, event = nil, expired()
		case <-over.C:
			l.Stop()
			return
		case <-l.done:
			return
		}
		select {
		case l.out <- event:
		case <-l.done:
			return
		}
	}
}

// expired has a reflector list again.
func expired() apiwatch.Event {
	return apiwatch.Event{Type: apiwatch.Error, Object: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "the connection was lost some time ago",
	}}
}
