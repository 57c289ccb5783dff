// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/nearlb/nearlb/pkg/watch/kube"
)

// What is asked of the API server (service-semantics.md 1.0). The converter keeps to the same rules.
const (
	notHeadless   = "spec.clusterIP!=None"
	slicesNotOurs = "!" + labelHeadless
)

// Kubernetes reads the API server that the client talks to. Services, EndpointSlices and Nodes must all have been listed
// before Synced; ServiceCIDRs, which old servers lack, must have been asked for. What names alone are made of may come later.
func Kubernetes(client kube.Client, cfg NodeConfig, log *slog.Logger) Source {
	s := newStore(cfg)
	s.allNodes = false
	return &cluster{
		store: s, client: client, log: log, outage: newOutage(log), guard: newGuard(s), announcer: newAnnouncer(s, client, log), others: newOthers(),
		waiting: map[kind]bool{
			kindService: true, kindSlice: true, kindNode: true, kindServiceCIDR: len(cfg.ServiceCIDRs) == 0,
		},
		unnamed: map[kind]bool{kindNamespace: cfg.Names != nil, kindPod: cfg.Names != nil && cfg.NamedPods},
	}
}

// cluster is a source. Each kind has a reflector of client-go, which lists and watches with back-off and writes into the
// store without a copy of its own.
type cluster struct {
	*store
	client    kube.Client
	log       *slog.Logger
	outage    *outage
	guard     *guard
	announcer *announcer
	others    *others

	mu      sync.Mutex // orders the events; held while ev is told
	ev      Events
	waiting map[kind]bool // kinds that are to be listed before Synced
	unnamed map[kind]bool // kinds that are to be listed before names are known
	synced  bool
	expiry  *time.Timer // of what the guard holds; nil: nothing yet
}

// Run follows the objects until ctx ends.
func (c *cluster) Run(ctx context.Context, ev Events) error {
	c.mu.Lock()
	c.ev = ev
	c.mu.Unlock()
	ctx = klog.NewContext(ctx, ClientLogger(c.log))
	var reflectors sync.WaitGroup
	reflectors.Go(func() { c.announcer.run(ctx) })
	reflectors.Go(func() { c.followOthers(ctx) })
	for _, r := range c.resources() {
		if r.kind == kindServiceCIDR && len(c.cfg.ServiceCIDRs) > 0 {
			continue
		}
		reflectors.Go(func() { c.reflect(ctx, r) })
	}
	reflectors.Wait()
	c.stopHolding()
	return nil
}

// How long to wait before the API server is asked again, less the jitter, which doubles it at most. client-go's own back-off
// goes up to a minute, for which a node would not follow a server that is back. A thousand nodes that each ask four times in
// 5 to 10 seconds are some 500 requests a second, refused at the door while the server is down, and spread when it is back.
const (
	retryFirst   = 800 * time.Millisecond
	retryLongest = 5 * time.Second
	retryReset   = 2 * time.Minute
)

// lackingEvery is how often, more or less, a server that has no ServiceCIDRs is asked whether it has: they are of Kubernetes 1.33, and
// an upgrade of the API server takes as long.
const lackingEvery = 10 * time.Minute

// backoff is the same for lists and for watches.
func backoff() wait.Backoff {
	return wait.Backoff{Duration: retryFirst, Cap: retryLongest, Steps: 40, Factor: 2, Jitter: 1}
}

// reflect lists and watches until ctx ends. It is Reflector.RunWithContext, with our back-off, less its log: outages are
// said once, where the requests are made.
func (c *cluster) reflect(ctx context.Context, r resource) {
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(r.listWatch(c), c.client),
		r.example, &sink{cluster: c, kind: r.kind},
		cache.ReflectorOptions{Name: string(r.kind), Logger: new(klog.FromContext(ctx)), Backoff: new(backoff())})
	delay := backoff().DelayWithReset(clock.RealClock{}, retryReset)
	refused := 0
	_ = delay.Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := reflector.ListAndWatchWithContext(ctx)
		if err != nil {
			c.log.Debug("list and watch ended", "kind", reflector.Name(), "error", err)
		}
		if !lacks(r.kind, err) {
			refused = 0
			return false, nil
		}
		pause(ctx, untilAskedAgain(err, refused))
		refused++
		return false, nil
	})
}

// lacks tells whether a server answered that it has no objects of a kind for us, and may do without them.
func lacks(k kind, err error) bool {
	return k == kindServiceCIDR && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err))
}

// untilAskedAgain is how long a server is left alone that lacks a kind. Permission may come a moment after the agent, when both are
// installed at once: who is refused asks again soon, and then ever more rarely.
func untilAskedAgain(err error, refused int) time.Duration {
	every := lackingEvery
	if apierrors.IsForbidden(err) {
		every = min(every, retryLongest<<min(refused, 16))
	}
	return every - every/10 + rand.N(every/5)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (c *cluster) resources() []resource {
	all := metav1.NamespaceAll
	services := metav1.ListOptions{LabelSelector: c.cfg.servicesOurs(), FieldSelector: notHeadless}
	endpoints := metav1.ListOptions{LabelSelector: slicesNotOurs}
	if c.names != nil { // headless ones, and those of other proxies, have names
		services, endpoints = metav1.ListOptions{}, metav1.ListOptions{}
	}
	return append(c.nameResources(),
		newResource(kindService, &corev1.Service{}, c.client.Services(all), services),
		newResource(kindSlice, &discoveryv1.EndpointSlice{}, c.client.EndpointSlices(all), endpoints),
		newResource(kindNode, &corev1.Node{}, c.client.Nodes(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, c.cfg.Name).String()}),
		newResource(kindServiceCIDR, &networkingv1.ServiceCIDR{}, c.client.ServiceCIDRs(), metav1.ListOptions{}),
	)
}

// update changes the store and tells of it, unless not everything was listed yet.
func (c *cluster) update(puts []object, drops []objectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(puts, drops)
}

func (c *cluster) change(puts []object, drops []objectKey) {
	var changed changes
	holding := c.guard.any()
	c.apply(puts, append(drops, c.guard.relieve(puts, drops)...), &changed)
	for _, name := range c.guard.takeTurned() {
		changed.service(name)
	}
	c.guard.settle(changed.services)
	if holding {
		c.sayRelieved()
	}
	c.others.look()
	if c.synced {
		changed.tell(c.ev)
		c.announcer.look(slices.Collect(maps.Keys(changed.services)))
	}
}

// listed notes that a kind was listed completely: Synced for the last of the first lists.
func (c *cluster) listed(k kind, puts []object, drops []objectKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.change(puts, c.hold(k, puts, drops))
	if k == kindOthers {
		c.knowOthers(c.others.extent == allOfOthers)
	}
	c.arrived(k)
}

func (c *cluster) arrived(k kind) {
	c.waiting[k], c.unnamed[k] = false, false
	if c.synced || slices.Contains(slices.Collect(maps.Values(c.waiting)), true) {
		return
	}
	if c.waitsForOthers() {
		return
	}
	c.judge()
	c.synced = true
	c.ev.Synced()
	c.announcer.look(c.Services())
}

// NamesKnown is NameSource's.
func (c *cluster) NamesKnown() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.Contains(slices.Collect(maps.Values(c.unnamed)), true)
}

// Announce makes Events.
func (c *cluster) Announce(troubles []Trouble) { c.announcer.Announce(troubles) }

// failed notes a request that failed. A server that answers that it has no ServiceCIDRs for us is not waited for.
func (c *cluster) failed(k kind, err error) {
	if !lacks(k, err) {
		c.outage.failed(k, err)
		return
	}
	c.outage.worked(k) // it answers: an outage before is over
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[k] {
		c.log.Info("ServiceCIDR objects cannot be read: unallocated ClusterIPs are not known", "error", err)
		c.arrived(k)
	}
}
