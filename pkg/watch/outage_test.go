// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/tests/fakeclient"
)

func TestAServerWithoutServiceCIDRsIsNotWaitedFor(t *testing.T) {
	missing := func(c *fakeclient.Clientset) {
		c.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewNotFound(schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}, "")
		})
	}
	withAPI(t, missing, func(a *api) {
		same(t, "syncs", a.synced(), 1)
		time.Sleep(time.Hour)
		same(t, "said", a.logged("ServiceCIDR"), 1)
		same(t, "outages said", a.logged("from the API server"), 0)
		same(t, "services", names(a.source), "default/web")
	}, apiService("web"))
}

// A kind that the server does not have must not keep an outage of the whole server open: the next one would go unsaid.
func TestAnOutageEndsOnAServerWithoutServiceCIDRs(t *testing.T) {
	var down atomic.Bool
	broken := func(c *fakeclient.Clientset) {
		c.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}, "", nil)
		})
		failing(c, "*", &down, errors.New("connection refused"))
	}
	down.Store(true)
	withAPI(t, broken, func(a *api) {
		time.Sleep(time.Hour)
		down.Store(false)
		time.Sleep(5 * time.Minute)
		same(t, "outages said", a.logged("objects cannot be read from the API server"), 1)
		same(t, "recoveries said", a.logged("can be read from the API server again"), 1)
		same(t, "syncs", a.synced(), 1)
	}, apiService("web"))
}

func TestAServiceCIDRIsANodeChange(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		_, err := a.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}, metav1.CreateOptions{})
		must(t, err)
		synctest.Wait()
		same(t, "told", a.nodeChanges(), 1)
		same(t, "ranges", len(a.source.ServiceCIDRs()), 1)
	})
}

// Servers before Kubernetes 1.33 have no ServiceCIDRs. They are asked once, and every ten minutes whether they were upgraded.
func TestAServerWithoutServiceCIDRsIsAskedEveryTenMinutes(t *testing.T) {
	var upgraded atomic.Bool
	refuse := func(c *fakeclient.Clientset) {
		c.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !upgraded.Load(), nil, apierrors.NewNotFound(schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}, "")
		})
	}
	withAPI(t, refuse, func(a *api) {
		asked := func() (n int) {
			for _, action := range a.client.Actions() {
				if action.Matches("list", "servicecidrs") || action.Matches("watch", "servicecidrs") {
					n++
				}
			}
			return n
		}
		same(t, "requests at the start", asked(), 1)
		time.Sleep(8 * time.Minute)
		same(t, "requests in eight minutes", asked(), 1)
		time.Sleep(10 * time.Hour)
		if n := asked(); n < 55 || n > 67 {
			t.Errorf("%d requests in ten hours, want about 60", n)
		}
		_, err := a.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}, metav1.CreateOptions{})
		must(t, err)
		upgraded.Store(true)
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		same(t, "ranges after the upgrade", len(a.source.ServiceCIDRs()), 1)
		same(t, "outages said", a.logged("cannot be read from the API server:"), 0)
	})
}

// Permission to read ServiceCIDRs that comes a moment after the agent is noticed soon; one that never comes costs a request every ten minutes.
func TestPermissionForServiceCIDRsThatComesLaterIsNoticedSoon(t *testing.T) {
	var allowed atomic.Bool
	refuse := func(c *fakeclient.Clientset) {
		c.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !allowed.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}, "", nil)
		})
	}
	objects := []runtime.Object{&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}}
	withAPI(t, refuse, func(a *api) {
		time.Sleep(2 * time.Second)
		allowed.Store(true)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		same(t, "ranges", len(a.source.ServiceCIDRs()), 1)
	}, objects...)
	allowed.Store(false)
	withAPI(t, refuse, func(a *api) {
		time.Sleep(10 * time.Hour)
		requests := 0
		for _, action := range a.client.Actions() {
			if action.Matches("list", "servicecidrs") || action.Matches("watch", "servicecidrs") {
				requests++
			}
		}
		if requests < 55 || requests > 80 {
			t.Errorf("%d requests in ten hours, want about 70", requests)
		}
	}, objects...)
}

// A server that takes a list's request and says nothing is as good as none. The end of the agent is no outage.
func TestAServerThatHangsIsAnOutage(t *testing.T) {
	for what, ends := range map[string]bool{"the list takes too long": false, "the agent ends": true} {
		synctest.Test(t, func(t *testing.T) {
			c := &cluster{outage: newOutage(slog.New(newRecorder()))}
			hangs := resource{kind: kindService, course: &course{}, list: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if ends {
				time.AfterFunc(time.Second, cancel)
			}
			_, _ = hangs.listWatch(c).ListWithContextFunc(ctx, metav1.ListOptions{})
			same(t, "outage when "+what, c.outage.lasts(), !ends)
		})
	}
}

func TestAServerThatDoesNotAnswerIsSaidOnce(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	withAPI(t, func(c *fakeclient.Clientset) { failing(c, "*", &down, errors.New("connection refused")) }, func(a *api) {
		time.Sleep(time.Hour)
		same(t, "said", len(a.lines), 1)
		same(t, "outages said", a.logged("objects cannot be read from the API server"), 1)
		same(t, "syncs", a.synced(), 0)
		down.Store(false)
		time.Sleep(5 * time.Minute)
		same(t, "recovery said", a.logged("can be read from the API server again"), 1)
		same(t, "syncs", a.synced(), 1)
		same(t, "services", names(a.source), "default/web")
	}, apiService("web"))
}

// A watch that is lost deletes nothing; the list after it tells what went away meanwhile, and nothing of what did not change.
func TestARelistTellsTheDifference(t *testing.T) {
	var watcher atomic.Pointer[apiwatch.RaceFreeFakeWatcher]
	own := func(c *fakeclient.Clientset) {
		c.PrependWatchReactor("endpointslices", func(clienttesting.Action) (bool, apiwatch.Interface, error) {
			watcher.Store(apiwatch.NewRaceFreeFake())
			return true, watcher.Load(), nil
		})
	}
	withAPI(t, own, func(a *api) {
		a.setSlice(apiSlice("other-a", "other", "10.1.1.1", "10.1.1.2"))
		must(t, a.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "web-a", metav1.DeleteOptions{}))
		synctest.Wait()
		a.told("") // the watch says nothing
		before := watcher.Load()
		before.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: 410, Message: "too old resource version"})
		synctest.Wait()
		same(t, "web in between", endpointsOf(a.source, "web"), 1)
		time.Sleep(5 * time.Minute)
		if watcher.Load() == before {
			t.Fatal("no new watch")
		}
		a.told("other web")
		same(t, "web", endpointsOf(a.source, "web"), 0)
		same(t, "other", endpointsOf(a.source, "other"), 2)
		same(t, "third", endpointsOf(a.source, "third"), 1)
		same(t, "syncs", a.synced(), 1)
		same(t, "node told", a.nodeChanges(), 0)
		same(t, "outages said", len(a.lines), 0)
	}, apiService("web"), apiService("other"), apiService("third"), apiSlice("web-a", "web", "10.1.0.1"), apiSlice("other-a", "other", "10.1.1.1"), apiSlice("third-a", "third", "10.1.2.1"))
}

// client-go's own back-off keeps growing over outages in a row, up to a minute.
func TestAServerThatIsBackIsFollowedWithinSecondsHoweverOftenItWent(t *testing.T) {
	var l lapses
	var down atomic.Bool
	prepare := func(c *fakeclient.Clientset) {
		l.install(c)
		failing(c, "*", &down, errors.New("connection refused"))
	}
	withAPI(t, prepare, func(a *api) {
		for i := range 8 {
			down.Store(true)
			l.relist("services", "endpointslices", "nodes")
			time.Sleep(time.Minute)
			same(t, "web meanwhile", endpointsOf(a.source, "web"), i+1)
			a.setSlice(apiSlice("web-a", "web", addresses(i+2)...))
			down.Store(false)
			time.Sleep(2 * retryLongest)
			synctest.Wait()
			same(t, "web", endpointsOf(a.source, "web"), i+2)
			same(t, "trouble", a.source.Health().Error, "")
			same(t, "outages said", a.logged("cannot be read from the API server"), i+1)
			same(t, "recoveries said", a.logged("can be read from the API server again"), i+1)
		}
	}, apiService("web"), apiSlice("web-a", "web", "10.1.0.1"))
}

func addresses(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("10.1.0.%d", i+1))
	}
	return out
}
