// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// api is a source over a fake API server, inside a bubble of synctest.
type api struct {
	t      *testing.T
	client *fakeclient.Clientset
	source Source
	*recorder
}

func withAPI(t *testing.T, prepare func(*fakeclient.Clientset), test func(*api), objects ...runtime.Object) {
	t.Helper()
	withGuard(t, Guard{}, prepare, test, objects...)
}

func withGuard(t *testing.T, guard Guard, prepare func(*fakeclient.Clientset), test func(*api), objects ...runtime.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := &api{t: t, client: fakeclient.NewClientset(objects...), recorder: newRecorder()}
		if prepare != nil {
			prepare(a.client)
		}
		a.source = Kubernetes(a.client.Client(nil), NodeConfig{Name: "n1"}, slog.New(a.recorder))
		a.source.Guard(guard)
		a.run(t, a.source)
		synctest.Wait()
		test(a)
	})
}

func apiService(name string, change ...func(*corev1.Service)) *corev1.Service {
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.10", Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	for _, f := range change {
		f(out)
	}
	return out
}

func withPort(number int32) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports[0].Port = number }
}

func apiSlice(name, owner string, addresses ...string) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{labelServiceName: owner}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
	}
	for _, address := range addresses {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: new("n2")})
	}
	return out
}

func apiNode(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func (a *api) setService(s *corev1.Service) {
	a.t.Helper()
	services := a.client.CoreV1().Services(s.Namespace)
	_, err := services.Update(a.t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = services.Create(a.t.Context(), s, metav1.CreateOptions{})
	}
	must(a.t, err)
	synctest.Wait()
}

func (a *api) setSlice(s *discoveryv1.EndpointSlice) {
	a.t.Helper()
	slices := a.client.DiscoveryV1().EndpointSlices(s.Namespace)
	_, err := slices.Update(a.t.Context(), s, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(a.t.Context(), s, metav1.CreateOptions{})
	}
	must(a.t, err)
	synctest.Wait()
}

func (a *api) setNode(n *corev1.Node) {
	a.t.Helper()
	_, err := a.client.CoreV1().Nodes().Update(a.t.Context(), n, metav1.UpdateOptions{})
	must(a.t, err)
	synctest.Wait()
}

// told checks what was told of Services since the last time, as "name" or "name -name", those that are gone last, and forgets it.
func (a *api) told(want string) {
	a.t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var got []string
	for _, name := range a.source.Services() {
		if a.services[name] > 0 {
			got = append(got, name.Name)
		}
		delete(a.services, name)
	}
	for _, name := range slices.SortedFunc(maps.Keys(a.services), lb.ServiceName.Compare) {
		got = append(got, "-"+name.Name)
	}
	clear(a.services)
	same(a.t, "told", strings.Join(got, " "), want)
}

// failing makes lists of a resource fail while the flag is set.
func failing(c *fakeclient.Clientset, resource string, flag *atomic.Bool, err error) {
	c.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return flag.Load(), nil, err
	})
}

func TestNothingIsToldBeforeEverythingWasListed(t *testing.T) {
	var late atomic.Bool
	late.Store(true)
	withAPI(t, func(c *fakeclient.Clientset) { failing(c, "nodes", &late, errors.New("not yet")) }, func(a *api) {
		a.setSlice(apiSlice("web-a", "web", "10.1.0.1", "10.1.0.2"))
		same(t, "syncs", a.synced(), 0)
		late.Store(false)
		time.Sleep(time.Minute)
		same(t, "syncs", a.synced(), 1)
		a.told("")
		same(t, "endpoints", endpointsOf(a.source, "web"), 2)
		same(t, "zone", a.source.Node().Zone, "a")
	}, apiService("web"), apiSlice("web-a", "web", "10.1.0.1"), apiNode("n1", "a"))
}

// Service-semantics.md 1.0: the server is asked for what concerns us only.
func TestTheServerFilters(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		want := map[string][2]string{
			"services":       {"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
			"endpointslices": {"!service.kubernetes.io/headless", ""},
			"nodes":          {"", "metadata.name=n1"}, "servicecidrs": {"", ""},
		}
		verbs := map[string]bool{}
		for _, action := range a.client.Actions() {
			var labels, fields string
			switch action := action.(type) {
			case clienttesting.ListAction:
				labels, fields = action.GetListRestrictions().Labels.String(), action.GetListRestrictions().Fields.String()
			case clienttesting.WatchAction:
				labels, fields = action.GetWatchRestrictions().Labels.String(), action.GetWatchRestrictions().Fields.String()
			default:
				t.Errorf("the agent does %s %s (A12: it only reads)", action.GetVerb(), action.GetResource().Resource)
			}
			resource := action.GetResource().Resource
			verbs[action.GetVerb()+" "+resource] = true
			if _, known := want[resource]; !known || [2]string{labels, fields} != want[resource] {
				t.Errorf("%s %s is asked with %q and %q (A5: no endpoints)", action.GetVerb(), resource, labels, fields)
			}
		}
		same(t, "requests", len(verbs), 8)
	})
}

// A13: slice before Service and Service before slice.
func TestServiceAndSliceComeInAnyOrder(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		a.setSlice(apiSlice("web-a", "web", "10.1.0.1"))
		a.told("")
		a.setService(apiService("web"))
		a.told("web")
		same(t, "endpoints", endpointsOf(a.source, "web"), 1)
		a.setService(apiService("other"))
		a.told("other")
		a.setSlice(apiSlice("other-a", "other", "10.1.0.2", "10.1.0.3"))
		a.told("other")
		same(t, "endpoints", endpointsOf(a.source, "other"), 2)
	})
}

// A16: one slice, one Service; a change that changes nothing tells nothing.
func TestOneEventIsToldOfOneService(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		a.setSlice(apiSlice("web-a", "web", "10.1.0.2"))
		a.told("web")
		slice := apiSlice("web-a", "web", "10.1.0.2")
		slice.Annotations = map[string]string{"note": "of no meaning"}
		a.setSlice(slice)
		a.told("")
		must(t, a.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "web-a", metav1.DeleteOptions{}))
		synctest.Wait()
		a.told("web")
		same(t, "endpoints", endpointsOf(a.source, "web"), 0)
		must(t, a.client.CoreV1().Services("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
		synctest.Wait()
		a.told("-web")
		same(t, "nodes told", a.nodeChanges(), 0)
	}, apiService("web"), apiService("other"), apiSlice("web-a", "web", "10.1.0.1"), apiSlice("other-a", "other", "10.1.1.1"), apiNode("n1", "a"))
}

// A13: kube-proxy leaves the endpoints behind here.
func TestASliceWhoseLabelChangesMoves(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		a.setSlice(apiSlice("web-a", "other", "10.1.0.1"))
		a.told("other web")
		same(t, "web", endpointsOf(a.source, "web"), 0)
		same(t, "other", endpointsOf(a.source, "other"), 1)
	}, apiService("web"), apiService("other"), apiSlice("web-a", "web", "10.1.0.1"))
}

func TestTogglingALabelTakesAnObjectOutAndBack(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		for range 2 {
			a.setService(apiService("web", func(s *corev1.Service) {
				s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
			}))
			a.told("-web")
			a.setService(apiService("web"))
			a.told("web")
			same(t, "endpoints", endpointsOf(a.source, "web"), 1)

			headless := apiSlice("web-a", "web", "10.1.0.1")
			headless.Labels[corev1.IsHeadlessService] = ""
			a.setSlice(headless)
			a.told("web")
			same(t, "endpoints", endpointsOf(a.source, "web"), 0)
			a.setSlice(apiSlice("web-a", "web", "10.1.0.1"))
			a.told("web")
			same(t, "endpoints", endpointsOf(a.source, "web"), 1)
		}
		a.setService(apiService("web", func(s *corev1.Service) { s.Spec.ClusterIP = "None" }))
		a.told("-web")
		a.setService(apiService("web", func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
		}))
		a.told("")
	}, apiService("web"), apiSlice("web-a", "web", "10.1.0.1"))
}

// near is a Service that asks for endpoints of its clients' zone.
func near(name string) *corev1.Service {
	return apiService(name, func(s *corev1.Service) {
		s.Annotations = map[string]string{annotationDistribution: string(lb.PreferSameZone)}
	})
}

// A11: a Node's label reaches the Services with endpoints there, and no other.
func TestANodesZoneReachesItsEndpoints(t *testing.T) {
	elsewhere := apiSlice("other-a", "other", "10.1.1.1")
	elsewhere.Endpoints[0].NodeName = new("n3")
	withAPI(t, nil, func(a *api) {
		a.setNode(apiNode("n2", "b"))
		a.told("web")
		same(t, "zone", input(t, a.source, "default", "web").Endpoints[0].Zone, "b")
		same(t, "node told", a.nodeChanges(), 0)
		busy := apiNode("n2", "b")
		busy.Status.Phase = corev1.NodeRunning
		a.setNode(busy)
		a.told("")
		a.setNode(apiNode("n1", "z"))
		a.told("other web") // what is near is another
		same(t, "node told", a.nodeChanges(), 1)
		same(t, "own zone", a.source.Node().Zone, "z")
		must(t, a.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		synctest.Wait()
		same(t, "own zone after its Node object is gone", a.source.Node().Zone, "z")
		busy.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.1.2"}}
		a.setNode(busy)
		a.told("other") // its second endpoint says no node (B16)
		same(t, "node", input(t, a.source, "default", "other").Endpoints[1].Node, "n2")
	}, near("web"), near("other"), apiSlice("web-a", "web", "10.1.0.1"), withoutNode(elsewhere, "10.1.1.2"), apiNode("n1", "a"), apiNode("n2", "a"), apiNode("n3", "a"))
}

// What changes of the own Node, or of the ranges of ClusterIPs, is told of the Services whose decision depends on it, and of no other.
func TestAChangeOfTheOwnNodeTellsOfTheServicesThatDependOnIt(t *testing.T) {
	withAddress := func(zone, address string) *corev1.Node {
		n := apiNode("n1", zone)
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		return n
	}
	exposed := apiService("exposed", func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080 })
	external := apiService("external", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.7"} })
	balanced := apiService("balanced", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}}
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
	})
	withAPI(t, nil, func(a *api) {
		for i, step := range []struct {
			node  *corev1.Node
			told  string
			nodes int
		}{
			{withAddress("a", "192.0.2.1"), "", 0},
			{relabelled(withAddress("a", "192.0.2.1"), "note", "x"), "", 0},
			{withAddress("a", "192.0.2.2"), "balanced exposed external", 1},
			{withAddress("b", "192.0.2.2"), "balanced exposed external plain", 2},
		} {
			a.setNode(step.node)
			a.told(step.told)
			same(t, fmt.Sprintf("node told after step %d", i), a.nodeChanges(), step.nodes)
		}
		tainted := withAddress("b", "192.0.2.2")
		tainted.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
		a.setNode(tainted)
		a.told("")
		same(t, "node told when it is leaving", a.nodeChanges(), 3)
		for _, name := range []string{"first", "second"} { // the same range twice is no news
			_, err := a.client.NetworkingV1().ServiceCIDRs().Create(t.Context(), &networkingv1.ServiceCIDR{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}, metav1.CreateOptions{})
			must(t, err)
			synctest.Wait()
		}
		a.told("balanced exposed external")
		same(t, "node told of the range", a.nodeChanges(), 4)
		a.mu.Lock()
		defer a.mu.Unlock()
		same(t, "times that exposed was told of since", a.services[lb.ServiceName{Namespace: "default", Name: "exposed"}], 0)
	}, balanced, exposed, external, apiService("plain"), withAddress("a", "192.0.2.1"))
}

// Problems are kept as they come and go.
func TestProblemsComeAndGoWithTheirObjects(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		bad := apiNode("n1", "a")
		bad.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2"}}
		a.setNode(bad)
		orphan := apiSlice("orphan", "nobody", "10.1.0.1", "127.0.0.1")
		a.setSlice(orphan)
		fields := func() (out []string) {
			for _, p := range a.source.Problems() {
				out = append(out, p.Object+" "+p.Field)
			}
			return out
		}
		const ofNode, ofSlice = "Node n1 status.addresses[0].address", "EndpointSlice default/orphan endpoints[1].addresses[0]"
		same(t, "both", fields(), []string{ofSlice, ofNode})
		a.setNode(apiNode("n1", "a"))
		same(t, "a Node that is mended", fields(), []string{ofSlice})
		a.setService(apiService("nobody"))
		same(t, "a slice whose Service came", fields(), []string(nil))
		same(t, "its problems there", len(input(t, a.source, "default", "nobody").Problems), 1)
		must(t, a.client.CoreV1().Services("default").Delete(t.Context(), "nobody", metav1.DeleteOptions{}))
		synctest.Wait()
		same(t, "without it again", fields(), []string{ofSlice})
		must(t, a.client.DiscoveryV1().EndpointSlices("default").Delete(t.Context(), "orphan", metav1.DeleteOptions{}))
		synctest.Wait()
		same(t, "without the slice", fields(), []string(nil))
	}, apiNode("n1", "a"))
}

func withoutNode(s *discoveryv1.EndpointSlice, address string) *discoveryv1.EndpointSlice {
	s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
	return s
}

// C12: the oldest trigger that was not handed out; history, the future and repetitions do not count.
func TestTriggersAreHandedOutOnce(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		set := func(name, trigger string, addresses ...string) {
			slice := apiSlice(name, "web", addresses...)
			slice.Annotations = map[string]string{annotationTrigger: trigger}
			a.setSlice(slice)
		}
		take := func() time.Time { return input(t, a.source, "default", "web").Triggered }
		stamp := func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }
		begin := time.Now()
		time.Sleep(time.Minute)
		for what, trigger := range map[string]string{"absent": "", "nonsense": "yesterday", "history": stamp(begin.Add(-time.Second)), "future": stamp(time.Now().Add(time.Hour))} {
			set("web-a", trigger, "10.1.0.1", "10.1.1."+map[bool]string{true: "1", false: "2"}[what < "h"])
			if got := take(); !got.IsZero() {
				t.Errorf("%s: triggered at %v", what, got)
			}
		}
		first, second := begin.Add(10*time.Second), begin.Add(20*time.Second)
		set("web-a", stamp(second), "10.1.0.2")
		set("web-b", stamp(first), "10.1.0.3")
		if got := take(); !got.Equal(first) {
			t.Errorf("triggered at %v, want the oldest %v", got, first)
		}
		if got := take(); !got.IsZero() {
			t.Errorf("handed out again: %v", got)
		}
		set("web-b", stamp(first), "10.1.0.4")
		if got := take(); !got.IsZero() {
			t.Errorf("the same annotation counts again: %v", got)
		}
	}, apiService("web"))
}
