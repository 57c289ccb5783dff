// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// watchesOf counts the watches of Nodes that a client was asked for, by the selector of fields.
func watchesOf(actions []clienttesting.Action) map[string]int {
	out := map[string]int{}
	for _, action := range actions {
		if w, is := action.(clienttesting.WatchAction); is && action.Matches("watch", "nodes") {
			out[w.GetWatchRestrictions().Fields.String()]++
		}
	}
	return out
}

const (
	ownNode    = "metadata.name=n1"
	otherNodes = "metadata.name!=n1"
)

// Plain Services ask for nothing of the other Nodes; each feature asks for what it needs, and nobody is asked for long after the last.
func TestOfOtherNodesOnlyThatIsReadWhichAFeatureInUseAsksFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n2 := relabelled(apiNode("n2", "b"), "rack", "r2")
		n2.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.7"}}
		scheme := metadatafake.NewTestScheme()
		must(t, metav1.AddMetaToScheme(scheme))
		partial := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: n2.ObjectMeta}
		light := metadatafake.NewSimpleMetadataClient(scheme, partial)
		a := &api{t: t, client: fakeclient.NewClientset(apiService("web"), apiSlice("web-a", "web", "10.1.0.1"), apiNode("n1", "a"), n2), recorder: newRecorder()}
		c := Kubernetes(a.client.Client(light), NodeConfig{Name: "n1"}, slog.New(a.recorder)).(*cluster)
		a.source = c
		a.run(t, c)
		synctest.Wait()
		same(t, "watches, of plain Services", watchesOf(a.client.Actions()), map[string]int{ownNode: 1})
		same(t, "of metadata", len(watchesOf(light.Actions())), 0)
		same(t, "Nodes", len(c.keys(kindOthers)), 0)

		a.setService(keyedService("racked", "rack,*"))
		a.setSlice(apiSlice("racked-a", "racked", "10.1.0.1"))
		same(t, "of metadata, with topology keys", watchesOf(light.Actions()), map[string]int{otherNodes: 1})
		same(t, "labels", labelsOf(a.source, "racked"), "10.1.0.1[{rack r2}]")
		same(t, "watches", watchesOf(a.client.Actions()), map[string]int{ownNode: 1})

		a.setService(apiService("external", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.7"} }))
		same(t, "watches, with external IPs", watchesOf(a.client.Actions()), map[string]int{ownNode: 1, otherNodes: 1})
		same(t, "taken", len(input(t, a.source, "default", "external").Taken), 1)

		a.wipe([]string{"racked", "external"}, nil, nil)
		time.Sleep(keptFor / 2)
		same(t, "Nodes, when nothing asks any more", len(c.keys(kindOthers)), 1)
		time.Sleep(keptFor)
		synctest.Wait()
		same(t, "Nodes some time later", len(c.keys(kindOthers)), 0)
		same(t, "own zone", a.source.Node().Zone, "a")
	})
}

// What is asked for at the start is there when the first decision is made.
func TestOtherNodesThatAreAskedForAreListedBeforeTheFirstDecision(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		same(t, "syncs", a.synced(), 1)
		a.told("")
		same(t, "labels", labelsOf(a.source, "web"), "10.1.0.1[{rack r2}]")
	}, keyedService("web", "rack,*"), apiSlice("web-a", "web", "10.1.0.1"), apiNode("n1", "a"), relabelled(apiNode("n2", "b"), "rack", "r2"))
}

func TestWhatServicesAskForOfOtherNodes(t *testing.T) {
	nodeless := withoutNode(apiSlice("web-a", "web", "10.1.0.1"), "10.1.0.9")
	zoned := apiSlice("web-a", "web", "10.1.0.1")
	zoned.Endpoints[0].Zone = new("b")
	external := apiService("web", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.7"} })
	for _, row := range []struct {
		name    string
		cfg     NodeConfig
		want    extent
		objects []runtime.Object
	}{
		{"a plain Service with an endpoint that says no node", NodeConfig{}, nothingOfOthers, []runtime.Object{apiService("web"), nodeless}},
		{"keys", NodeConfig{}, metadataOfOthers, []runtime.Object{keyedService("web", "rack")}},
		{"keys, and an endpoint that says no node", NodeConfig{}, allOfOthers, []runtime.Object{keyedService("web", "rack"), nodeless}},
		{"the same without --infer-nodes", NodeConfig{KeepNodeless: true}, metadataOfOthers, []runtime.Object{keyedService("web", "rack"), nodeless}},
		{"near, by zones that slices say", NodeConfig{}, nothingOfOthers, []runtime.Object{near("web"), zoned}},
		{"near, by zones that Nodes say", NodeConfig{}, metadataOfOthers, []runtime.Object{near("web"), apiSlice("web-a", "web", "10.1.0.1")}},
		{"an overflow", NodeConfig{}, allOfOthers, []runtime.Object{overflowing("web")}},
		{"external IPs", NodeConfig{}, allOfOthers, []runtime.Object{external}},
		{"external IPs that nobody serves", NodeConfig{ExternalIPs: lb.ExternalIPsDenied}, nothingOfOthers, []runtime.Object{external}},
	} {
		row.cfg.Name = "n1"
		s := newStore(row.cfg)
		apply(t, s, row.objects...)
		same(t, row.name, s.extent(), row.want)
		s.apply(nil, []objectKey{{kindService, "default", "web"}}, &changes{})
		same(t, row.name+", gone", s.extent(), nothingOfOthers)
	}
}

// One Node of each zone says the region of all.
func TestRegionsAreKnownThoughOtherNodesAreNotRead(t *testing.T) {
	region := func(zone, name string) *corev1.Node {
		return relabelled(apiNode(name, zone), corev1.LabelTopologyRegion, "r-"+zone[:1])
	}
	inZone := func(name, zone string) runtime.Object {
		out := apiSlice(name+"-a", name, "10.1.0.1")
		out.Endpoints[0].Zone = &zone
		return out
	}
	withAPI(t, nil, func(a *api) {
		regions := func() (out []string) {
			for _, name := range a.source.Services() {
				out = append(out, input(t, a.source, "default", name.Name).Endpoints[0].Region)
			}
			return out
		}
		same(t, "regions", regions(), []string{"r-a", "r-b", ""})
		same(t, "watches", watchesOf(a.client.Actions()), map[string]int{ownNode: 1})
		must(t, a.client.Tracker().Add(region("c1", "n4")))
		a.setService(apiService("late"))
		late := inZone("late", "c1")
		must(t, a.client.Tracker().Add(late))
		synctest.Wait()
		same(t, "regions, with a new zone", regions(), []string{"r-a", "r-b", "r-c", ""})
	}, region("a1", "n1"), region("a2", "n2"), region("b1", "n3"), apiService("api"), apiService("dns"), apiService("web"),
		inZone("api", "a2"), inZone("dns", "b1"), inZone("web", "nowhere"))
}

func TestZonesAreForgottenWithTheirLastEndpoint(t *testing.T) {
	s := newStore(NodeConfig{Name: "n1"})
	for i := range 100 {
		slice := apiSlice("web-a", "web", "10.1.0.1")
		zone := fmt.Sprint("zone-", i)
		slice.Endpoints[0].Zone = &zone
		o, refused := convert(slice)
		if refused != nil {
			t.Fatal(refused)
		}
		s.apply([]object{o}, nil, &changes{})
		s.regions[zone] = "somewhere"
	}
	same(t, "zones", s.zones, map[string]int{"zone-99": 1})
	same(t, "regions", s.regions, map[string]string{"zone-99": "somewhere"})
	other := apiSlice("web-a", "web", "10.1.0.2")
	zone := "zone-99"
	other.Endpoints[0].Zone = &zone
	o, refused := convert(other)
	if refused != nil {
		t.Fatal(refused)
	}
	s.apply([]object{o}, nil, &changes{})
	same(t, "regions, with another endpoint in the zone", s.regions, map[string]string{"zone-99": "somewhere"})
	s.apply(nil, []objectKey{{kindSlice, "default", "web-a"}}, &changes{})
	same(t, "zones without slices", len(s.zones)+len(s.regions), 0)
}

// What a Service asks for changes with its slices, with the own Node's addresses, and ends with it.
func TestHowMuchIsAskedOfOtherNodesFollowsEveryChange(t *testing.T) {
	s := newStore(NodeConfig{Name: "n1"})
	put := func(in runtime.Object) {
		t.Helper()
		o, refused := convert(in)
		if refused != nil {
			t.Fatal(refused)
		}
		s.apply([]object{o}, nil, &changes{})
	}
	node := func(name, zone string) *discoveryv1.EndpointSlice {
		slice := apiSlice("near-a", "near", "10.1.0.1")
		slice.Endpoints[0].NodeName, slice.Endpoints[0].Zone = &name, &zone
		if name == "" {
			slice.Endpoints[0].NodeName = nil
		}
		return slice
	}
	same(t, "nothing", s.extent(), nothingOfOthers)
	put(apiService("near", func(in *corev1.Service) { in.Annotations = map[string]string{annotationDistribution: "PreferSameNode"} }))
	put(node("n2", "a"))
	same(t, "endpoints with node and zone", s.extent(), nothingOfOthers)
	put(node("n2", ""))
	same(t, "without zone", s.extent(), metadataOfOthers)
	put(node("", ""))
	same(t, "without node", s.extent(), allOfOthers)
	own := apiNode("n1", "a")
	own.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.1.0.1"}}
	put(own)
	same(t, "without node, at the own Node's address", s.extent(), nothingOfOthers)
	put(apiService("external", func(in *corev1.Service) { in.Spec.ExternalIPs = []string{"198.51.100.7"} }))
	same(t, "an external IP", s.extent(), allOfOthers)
	s.apply(nil, []objectKey{{kindService, "default", "external"}, {kindService, "default", "near"}}, &changes{})
	same(t, "after the last of them", s.extent(), nothingOfOthers)
	same(t, "Services noted", len(s.picky), 0)
}
