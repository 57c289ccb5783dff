// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch/kube"
)

const (
	eventSource   = "nearlb"
	announcers    = 3 // agents that tell of what all nodes see
	announceTry   = 5 // attempts to tell of one Service
	announceWait  = time.Second
	announceAgain = 65 * time.Minute // API servers keep an Event for an hour
	announceLater = 30 * time.Second // within that, by chance, what may be the same on many nodes is told
	announceRate  = 1                // Events a second
	announceBurst = 20
	eventMessage  = 1024 // bytes: what the newer kind of Event may have
)

// announcer makes an Event on a Service that something is wrong with: whoever wrote it looks there, not into the agents' status. Every
// agent of a cluster may see the same, so the Event's name follows from what is wrong: the API server takes it once, and an agent needs
// no right but to create. Of what all nodes see a few agents tell. That is why this is no client-go recorder, which gives every Event
// a new name.
type announcer struct {
	*store
	client kube.Client
	log    *slog.Logger
	queue  workqueue.TypedRateLimitingInterface[lb.ServiceName]
	rate   flowcontrol.RateLimiter
	// of run alone
	told  map[lb.ServiceName]map[string]time.Time // by names of Events of what is still wrong: when
	named map[string]bool                         // Nodes
	at    time.Time                               // when they were counted

	given  sync.Mutex
	wrongs map[lb.ServiceName][]Trouble // as the agent said last
	last   map[lb.ServiceName]bool      // Services that were announced, or may have been
}

func newAnnouncer(s *store, client kube.Client, log *slog.Logger) *announcer {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[lb.ServiceName](announceWait, time.Minute)
	return &announcer{
		store: s, client: client, log: log, queue: workqueue.NewTypedRateLimitingQueue(limiter),
		rate: flowcontrol.NewTokenBucketRateLimiter(announceRate, announceBurst),
		told: map[lb.ServiceName]map[string]time.Time{}, wrongs: map[lb.ServiceName][]Trouble{},
		last: map[lb.ServiceName]bool{},
	}
}

// look has run look at those of the Services that have, or had, something to tell: nearly none of thousands.
func (a *announcer) look(names []lb.ServiceName) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	a.given.Lock()
	defer a.given.Unlock()
	for _, name := range names {
		if svc := a.services[name]; svc != nil && len(svc.more().annotations) > 0 || a.last[name] || len(a.wrongs[name]) > 0 {
			a.last[name] = true
			a.queue.Add(name)
		}
	}
}

// Announce has run look at the Services whose troubles are not what they were.
func (a *announcer) Announce(troubles []Trouble) {
	now := map[lb.ServiceName][]Trouble{}
	for _, t := range troubles {
		now[t.Service] = append(now[t.Service], t)
	}
	a.given.Lock()
	defer a.given.Unlock()
	before := a.wrongs
	a.wrongs = now
	for name := range before {
		if _, still := now[name]; !still {
			a.queue.Add(name)
		}
	}
	for name, list := range now {
		if !slices.Equal(before[name], list) {
			a.queue.AddAfter(name, patience(list))
		}
	}
}

// patience spreads over some time what many nodes may have to tell at once.
func patience(list []Trouble) time.Duration {
	if slices.ContainsFunc(list, func(t Trouble) bool { return t.Here }) {
		return rand.N(announceLater)
	}
	return 0
}

// run makes Events until ctx ends.
func (a *announcer) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, a.queue.ShutDown)
	defer stop()
	for {
		name, stopped := a.queue.Get()
		if stopped {
			return
		}
		err := a.announce(ctx, name)
		if err != nil && a.queue.NumRequeues(name) < announceTry {
			a.queue.AddRateLimited(name)
		} else {
			a.queue.Forget(name)
		}
		a.queue.Done(name)
	}
}

// announce makes the Events of one Service that are due. An Event is made again when the trouble was gone meanwhile, or when it
// lasts so long that the API server has forgotten the Event.
func (a *announcer) announce(ctx context.Context, name lb.ServiceName) error {
	told := map[string]time.Time{}
	a.given.Lock()
	delete(a.last, name)
	a.given.Unlock()
	for _, e := range a.events(name) {
		at := a.told[name][e.Name]
		if now := time.Now(); at.IsZero() || now.Sub(at) >= announceAgain {
			if err := a.create(ctx, e); err != nil {
				return err
			}
			at = now
		}
		told[e.Name] = at
	}
	if len(told) == 0 {
		delete(a.told, name)
		return nil
	}
	a.told[name] = told
	a.given.Lock()
	a.last[name] = true
	a.given.Unlock()
	a.queue.AddAfter(name, announceAgain)
	return nil
}

// create makes an Event. That another agent made it first is no error. If it cannot be made, the Service's problems still say what
// it says.
func (a *announcer) create(ctx context.Context, e *corev1.Event) error {
	if err := a.rate.Wait(ctx); err != nil {
		return nil // the agent ends
	}
	now := metav1.Now()
	e.FirstTimestamp, e.LastTimestamp = now, now
	err := a.client.CreateEvent(ctx, e)
	switch {
	case err == nil, apierrors.IsAlreadyExists(err):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err), apierrors.IsInvalid(err):
		a.log.Warn("Event cannot be made", "service", e.InvolvedObject.Namespace+"/"+e.InvolvedObject.Name, "error", err)
		return nil
	}
	return err
}

// events are those that this agent is to make for a Service.
func (a *announcer) events(name lb.ServiceName) (events []*corev1.Event) {
	a.given.Lock()
	troubles := a.wrongs[name]
	a.given.Unlock()
	a.mu.RLock()
	defer a.mu.RUnlock()
	svc := a.services[name]
	if len(troubles) == 0 && (svc == nil || len(svc.more().annotations) == 0) {
		return nil // as nearly always, for thousands of Services after each list; who is to tell is found among thousands of Nodes
	}
	tells := a.tells(name)
	uid, known := a.uids[objectKey{kindService, name.Namespace, name.Name}]
	if svc != nil {
		uid, known = svc.uid, true
	}
	if !known {
		return nil // there is no such object any more
	}
	if svc != nil && tells {
		for _, p := range svc.more().annotations {
			message := p.Message + "; the annotation is ignored"
			events = append(events, a.event(uid, Trouble{Service: name, Reason: ReasonAnnotation, Field: p.Field, Message: message, Same: p.Message}))
		}
	}
	for _, t := range troubles { // the agent may not have looked at the Service as it is now: of annotations the Service says itself
		if !ofAnnotation(t.Field) && (t.Here || tells) {
			events = append(events, a.event(uid, t))
		}
	}
	return events
}

func (a *announcer) event(uid types.UID, t Trouble) *corev1.Event {
	same, message := t.Same, t.Message
	if same == "" {
		same = t.Message
	}
	if t.Field != "" {
		message = t.Field + ": " + message
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: t.Service.Namespace,
			Name:      fmt.Sprintf("%s.%s-%016x", t.Service.Name, eventSource, hashOf(string(uid), t.Reason, t.Field, same)),
		},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: string(kindService), Namespace: t.Service.Namespace, Name: t.Service.Name, UID: uid},
		Reason:         t.Reason, Type: corev1.EventTypeWarning, Count: 1,
		Message: eventText(message),
		Source:  corev1.EventSource{Component: eventSource, Host: a.cfg.Name},
		// who made it, as newer readers want it
		ReportingController: eventSource, ReportingInstance: a.cfg.Name,
	}
}

// eventText escapes what would not stay on its line of a terminal, and keeps to the length that Events may have.
func eventText(text string) string {
	const more = "..."
	var out strings.Builder
	for _, r := range text {
		part := string(r)
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			part = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if out.Len()+len(part) > eventMessage-len(more) {
			return out.String() + more
		}
		out.WriteString(part)
	}
	return out.String()
}

// tells says whether this agent is one of the few that make Events of what all nodes see. They are several, as a Node may have no
// agent.
func (a *announcer) tells(name lb.ServiceName) bool {
	own, before := hashOf(a.cfg.Name, name.String()), 0
	for other := range a.nodesNamed() {
		if hashOf(other, name.String()) < own {
			before++
		}
	}
	return before < announcers
}

// nodesNamed are the Nodes that endpoints are on, as of a minute ago: most of all there are, and the others are not read.
func (a *announcer) nodesNamed() map[string]bool {
	if now := time.Now(); a.named == nil || now.Sub(a.at) > time.Minute {
		a.named, a.at = map[string]bool{}, now
		for _, slice := range a.slices {
			for _, e := range slice.endpoints {
				a.named[e.At.Value().Node] = true
			}
		}
		delete(a.named, "")
	}
	return a.named
}

func hashOf(parts ...string) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write([]byte(part + "\x00")) // never fails
	}
	return h.Sum64()
}
