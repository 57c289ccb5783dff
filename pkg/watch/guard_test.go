// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

const grace = 5 * time.Minute

// listLatest is more than the longest wait between two tries, and far less than the grace.
const listLatest = 30 * time.Second

func halfFor(d time.Duration) Guard { return Guard{Grace: d, Percent: 50} }

// lapses are watches that say nothing and end when they are told to: what happens meanwhile is known from the list after them.
type lapses struct {
	mu       sync.Mutex
	watchers map[string]*apiwatch.RaceFreeFakeWatcher
}

func (l *lapses) install(c *fakeclient.Clientset) {
	l.watchers = map[string]*apiwatch.RaceFreeFakeWatcher{}
	for _, resource := range []string{"services", "endpointslices", "nodes"} {
		c.PrependWatchReactor(resource, func(clienttesting.Action) (bool, apiwatch.Interface, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.watchers[resource] = apiwatch.NewRaceFreeFake()
			return true, l.watchers[resource], nil
		})
	}
}

func (l *lapses) of(resource string) *apiwatch.RaceFreeFakeWatcher {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watchers[resource]
}

// relist ends the watches, and waits for the lists.
func (l *lapses) relist(resources ...string) {
	for _, resource := range resources {
		l.of(resource).Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410, Message: "too old"})
	}
	time.Sleep(listLatest)
	synctest.Wait()
}

// event has a watch tell of something.
func (l *lapses) event(resource string, tell func(w *apiwatch.RaceFreeFakeWatcher)) {
	tell(l.of(resource))
	synctest.Wait()
}

// wipe deletes from the server, which nobody is told of.
func (a *api) wipe(services, slices, nodes []string) {
	a.t.Helper()
	for _, name := range services {
		must(a.t, a.client.CoreV1().Services("default").Delete(a.t.Context(), name, metav1.DeleteOptions{}))
	}
	for _, name := range slices {
		must(a.t, a.client.DiscoveryV1().EndpointSlices("default").Delete(a.t.Context(), name, metav1.DeleteOptions{}))
	}
	for _, name := range nodes {
		must(a.t, a.client.CoreV1().Nodes().Delete(a.t.Context(), name, metav1.DeleteOptions{}))
	}
}

func (a *api) restore(objects ...runtime.Object) {
	a.t.Helper()
	for _, o := range objects {
		must(a.t, a.client.Tracker().Add(o))
	}
}

func (a *api) held(services, endpoints, nodes int) {
	a.t.Helper()
	h := a.source.Health().Held
	same(a.t, "held", fmt.Sprint(h.Services, h.Endpoints, h.Nodes), fmt.Sprint(services, endpoints, nodes))
}

// shop is a cluster of two Services beside the API server's own, and two Nodes.
func shop() []runtime.Object {
	return []runtime.Object{
		apiService("kubernetes"), apiService("web"), apiService("api"),
		apiSlice("kubernetes", "kubernetes", "192.0.2.9"), apiSlice("web-a", "web", "10.1.0.1", "10.1.0.2"), apiSlice("api-a", "api", "10.1.1.1"),
		apiNode("n1", "a"), apiNode("n2", "b"),
	}
}

func wiped(t *testing.T, guard Guard, test func(a *api, l *lapses)) {
	t.Helper()
	var l lapses
	withGuard(t, guard, l.install, func(a *api) {
		a.wipe([]string{"web", "api"}, []string{"web-a", "api-a"}, []string{"n1", "n2"})
		a.told("")
		l.relist("services", "endpointslices", "nodes")
		test(a, &l)
	}, shop()...)
}

func TestAServerThatSuddenlyListsNothingTakesNothingAwayForAWhile(t *testing.T) {
	wiped(t, halfFor(grace), func(a *api, _ *lapses) {
		a.told("api web")
		a.held(2, 0, 1)
		same(t, "services", names(a.source), "default/api default/kubernetes default/web")
		same(t, "web", endpointsOf(a.source, "web"), 2)
		same(t, "eligible", a.source.NodeEligible(), true)
		same(t, "zone", a.source.Node().Zone, "a")
		same(t, "said, once for each kind", a.logged("suddenly lists far fewer"), 3)
		time.Sleep(grace - 2*listLatest)
		a.told("")
		time.Sleep(2 * listLatest)
		a.told("-api -web")
		a.held(0, 0, 0)
		same(t, "services", names(a.source), "default/kubernetes")
		same(t, "eligible", a.source.NodeEligible(), false)
		same(t, "end said", a.logged("is removed"), 1)
		same(t, "return said", a.logged("lists again"), 0)
	})
}

func TestWhatComesBackInTimeIsNotTouched(t *testing.T) {
	wiped(t, halfFor(grace), func(a *api, l *lapses) {
		a.restore(shop()[1:3]...)
		a.restore(shop()[4:]...)
		l.relist("services", "endpointslices", "nodes")
		a.held(0, 0, 0)
		same(t, "return said", a.logged("lists again what was missing"), 1)
		time.Sleep(2 * grace)
		a.told("api web") // held, and not any more
		same(t, "services", names(a.source), "default/api default/kubernetes default/web")
		same(t, "removal said", a.logged("is removed"), 0)
	})
}

// Who is held says so with its Input, and is told of at both turns: a Service that exists is preferred to one that is held.
func TestAHeldServiceSaysSo(t *testing.T) {
	wiped(t, halfFor(grace), func(a *api, l *lapses) {
		isHeld := func(name string) bool {
			in, exists := a.source.Input(lb.ServiceName{Namespace: "default", Name: name})
			return exists && in.Held
		}
		a.told("api web")
		same(t, "held", fmt.Sprint(isHeld("web"), isHeld("api"), isHeld("kubernetes")), "true true false")
		l.event("services", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(apiService("web")) })
		a.told("web")
		same(t, "held", fmt.Sprint(isHeld("web"), isHeld("api")), "false true")
	})
}

func TestWithoutAGraceAListIsBelievedAtOnce(t *testing.T) {
	wiped(t, Guard{Percent: 50}, func(a *api, _ *lapses) {
		a.held(0, 0, 0)
		same(t, "services", names(a.source), "default/kubernetes")
	})
}

func TestWhatIsNewOrChangedIsInForceWhileOthersAreHeld(t *testing.T) {
	wiped(t, halfFor(grace), func(a *api, l *lapses) {
		a.told("api web")
		l.event("services", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(apiService("new")) })
		a.told("new")
		l.event("services", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(apiService("web", withPort(81))) })
		a.told("web")
		a.held(1, 1, 1) // its endpoints are missing still
		same(t, "web", endpointsOf(a.source, "web"), 2)

		unready := apiSlice("web-b", "web", "10.1.0.3")
		unready.Endpoints[0].Conditions.Ready = new(false)
		l.event("endpointslices", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(unready) })
		same(t, "web, with an endpoint that is not ready", endpointsOf(a.source, "web"), 3)
		l.event("endpointslices", func(w *apiwatch.RaceFreeFakeWatcher) { w.Modify(apiSlice("web-b", "web", "10.1.0.3")) })
		same(t, "web, with a ready one", endpointsOf(a.source, "web"), 1)
		a.told("web")
		a.held(1, 0, 1)

		// what the server knows again is deleted as ever
		l.event("services", func(w *apiwatch.RaceFreeFakeWatcher) { w.Delete(apiService("web")) })
		a.told("-web")
		time.Sleep(grace)
		a.told("-api")
		same(t, "services", names(a.source), "default/kubernetes default/new")
	})
}

func TestEndpointsThatAreAllMissingAreHeldWhileTheirServicesStay(t *testing.T) {
	var l lapses
	withGuard(t, halfFor(grace), l.install, func(a *api) {
		a.wipe(nil, []string{"web-a", "web-6", "api-a"}, nil)
		l.relist("endpointslices", "services")
		a.held(0, 2, 0)
		a.told("")
		// the families of a Service come back each for itself
		l.event("endpointslices", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(apiSlice("web-b", "web", "10.1.0.9")) })
		same(t, "web", endpointsOf(a.source, "web"), 2)
		time.Sleep(grace)
		same(t, "web", endpointsOf(a.source, "web"), 1)
		same(t, "api", endpointsOf(a.source, "api"), 0)
		a.told("api web")
	}, append(shop(), ofIPv6(apiSlice("web-6", "web", "fd00::1")))...)
}

func ofIPv6(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s.AddressType = discoveryv1.AddressTypeIPv6
	return s
}

func TestFewThatAreMissingAreRemovedAtOnce(t *testing.T) {
	var l lapses
	withGuard(t, halfFor(grace), l.install, func(a *api) {
		a.wipe([]string{"web"}, []string{"web-a"}, []string{"n2"})
		l.relist("services", "endpointslices", "nodes")
		a.held(0, 0, 0)
		same(t, "services", names(a.source), "default/api default/kubernetes")
	}, shop()...)
}

// A namespace that somebody deletes may be most of a cluster.
func TestDeletionsThatAWatchTellsOfAreNeverHeld(t *testing.T) {
	withGuard(t, halfFor(grace), nil, func(a *api) {
		a.wipe([]string{"web", "api"}, []string{"web-a", "api-a"}, nil)
		synctest.Wait()
		a.told("-api -web")
		a.held(0, 0, 0)
		same(t, "services", names(a.source), "default/kubernetes")
	}, shop()...)
}

// What the own Node said stays in force, as in kube-proxy, but its deletion was told and is no news of a later list.
func TestTheOwnNodeThatWasDeletedIsNotHeldByALaterList(t *testing.T) {
	var l lapses
	withGuard(t, halfFor(grace), l.install, func(a *api) {
		a.wipe(nil, nil, []string{"n1"})
		l.event("nodes", func(w *apiwatch.RaceFreeFakeWatcher) { w.Delete(apiNode("n1", "a")) })
		l.relist("nodes")
		a.held(0, 0, 0)
		same(t, "eligible", a.source.NodeEligible(), false)
	}, apiNode("n1", "a"))
}

// A server that is away, for a restore from a backup perhaps, does not say that anything is gone.
func TestTheTimeOfWhatIsHeldEndsOnlyWhileTheServerCanBeRead(t *testing.T) {
	var l lapses
	var down atomic.Bool
	prepare := func(c *fakeclient.Clientset) {
		l.install(c)
		failing(c, "*", &down, errors.New("connection refused"))
	}
	withGuard(t, halfFor(grace), prepare, func(a *api) {
		a.wipe([]string{"web", "api"}, nil, nil)
		l.relist("services")
		a.held(2, 0, 0)
		down.Store(true)
		l.relist("services")
		time.Sleep(10 * grace)
		a.held(2, 0, 0)
		a.told("api web")
		if h := a.source.Health(); h.Error != "connection refused" || !h.Held.Until.After(time.Now()) {
			t.Errorf("%+v", h)
		}
		down.Store(false)
		time.Sleep(2*grace + listLatest)
		same(t, "services", names(a.source), "default/kubernetes")
	}, shop()...)
}

// Relists that go on to miss what is held neither prolong its time nor end it.
func TestListsThatMissTheSameDoNotProlongTheTime(t *testing.T) {
	wiped(t, halfFor(grace), func(a *api, l *lapses) {
		until := a.source.Health().Held.Until
		for i := range 20 {
			l.event("services", func(w *apiwatch.RaceFreeFakeWatcher) { w.Add(apiService(fmt.Sprintf("new-%02d", i))) })
			_, err := a.client.CoreV1().Services("default").Create(t.Context(), apiService(fmt.Sprintf("new-%02d", i)), metav1.CreateOptions{})
			must(t, err)
		}
		l.relist("services") // now few are missing
		a.held(2, 0, 1)
		same(t, "until", a.source.Health().Held.Until.Equal(until), true)
		time.Sleep(grace)
		a.held(0, 0, 0)
		same(t, "services", len(a.source.Services()), 21)
	})
}

func published(names map[string]bool) Guard {
	g := halfFor(grace)
	before := map[lb.ServiceName]bool{}
	for name, used := range names {
		before[lb.ServiceName{Namespace: "default", Name: name}] = used
	}
	g.Published = func() map[lb.ServiceName]bool { return before }
	return g
}

func (a *api) holds(name string) bool {
	return a.source.Holds(lb.ServiceName{Namespace: "default", Name: name})
}

func TestWhatAnEarlierAgentPublishedIsHeldIfTheFirstListsLackIt(t *testing.T) {
	guard := published(map[string]bool{"kubernetes": true, "web": true, "api": true, "idle": false})
	withGuard(t, guard, nil, func(a *api) {
		a.held(3, 0, 0)
		same(t, "synced", a.synced(), 1)
		same(t, "said", a.logged("far less than this node has published"), 1)
		same(t, "eligible though the Node is missing", a.source.NodeEligible(), true)
		same(t, "kubernetes", a.holds("kubernetes"), false)
		a.setService(apiService("web"))
		same(t, "web, without endpoints", a.holds("web"), true)
		a.held(2, 1, 0)
		a.told("web")
		a.setSlice(apiSlice("web-a", "web", "10.1.0.1"))
		same(t, "web, with endpoints", a.holds("web"), false)
		a.told("web")
		a.setService(apiService("api"))
		a.wipe([]string{"api"}, nil, nil)
		synctest.Wait()
		same(t, "api, deleted", a.holds("api"), false)
		a.held(1, 0, 0)
		a.told("-api")
		time.Sleep(grace)
		synctest.Wait()
		a.told("-idle")
		same(t, "idle", a.holds("idle"), false)
		same(t, "eligible", a.source.NodeEligible(), false)
	}, apiService("kubernetes"), apiSlice("kubernetes", "kubernetes", "192.0.2.9"))
}

func TestServicesThatAreListedWithoutEndpointsAtTheStartAreHeldLikewise(t *testing.T) {
	withGuard(t, published(map[string]bool{"web": true, "api": true, "idle": false}), nil, func(a *api) {
		a.held(0, 2, 0)
		same(t, "idle", a.holds("idle"), false)
		a.setSlice(apiSlice("web-a", "web", "10.1.0.1"))
		a.setSlice(apiSlice("api-a", "api", "10.1.0.1"))
		a.held(0, 0, 0)
		same(t, "return said", a.logged("lists again"), 1)
	}, apiService("web"), apiService("api"), apiService("idle"), apiNode("n1", "a"))
}

func TestAFewServicesThatWereDeletedWhileNoAgentRanAreNotHeld(t *testing.T) {
	withGuard(t, published(map[string]bool{"web": true, "api": true, "gone": true}), nil, func(a *api) {
		a.held(0, 0, 0)
		same(t, "gone", a.holds("gone"), false)
	}, shop()...)
}

// A run that ends while something is held leaves no timer behind that tells of it.
func TestTheEndOfARunEndsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		source := Kubernetes(fakeclient.NewClientset().Client(nil), NodeConfig{Name: "n1"}, slog.New(r))
		source.Guard(published(map[string]bool{"web": true}))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- source.Run(ctx, r) }()
		synctest.Wait()
		same(t, "held", source.Health().Held.Services, 1)
		cancel()
		must(t, <-ended)
		nodes := r.nodeChanges()
		time.Sleep(2 * grace)
		same(t, "told after the end", r.changed("web")+r.nodeChanges()-nodes, 0)
	})
}
