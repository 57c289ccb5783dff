// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/fakeclient"
)

// events lists the messages of the Events there are, and how often the server was asked to make one.
func (a *api) events() (messages []string, requests int) {
	a.t.Helper()
	synctest.Wait()
	list, err := a.client.CoreV1().Events("default").List(a.t.Context(), metav1.ListOptions{})
	must(a.t, err)
	for _, e := range list.Items {
		messages = append(messages, e.InvolvedObject.Name+" "+e.Message)
	}
	slices.Sort(messages)
	for _, action := range a.client.Actions() {
		if action.Matches("create", "events") {
			requests++
		}
	}
	return messages, requests
}

// B8: each mistake is an Event on the Service, once, and the Service is served.
func TestAWrongAnnotationIsAnEventOnItsService(t *testing.T) {
	bad := keyedService("web", "*,rack,rack")
	bad.UID = "u-1"
	withAPI(t, nil, func(a *api) {
		want := []string{
			`web metadata.annotations[nearlb.io/topology-keys]: "*,rack,rack": "*" must be the last key; the annotation is ignored`,
			`web metadata.annotations[nearlb.io/topology-keys]: "rack": duplicate value; the annotation is ignored`,
		}
		got, requests := a.events()
		same(t, "events", got, want)
		same(t, "requests", requests, 2)
		list, err := a.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range list.Items {
			same(t, "object", e.InvolvedObject, corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: "web", UID: "u-1"})
			same(t, "kind of event", e.Type+" "+e.Reason+" "+e.Source.Component+" "+e.Source.Host, "Warning InvalidAnnotation nearlb n1")
		}
		same(t, "constraint", len(input(t, a.source, "default", "web").Service.TopologyKeys), 0)

		more := bad.DeepCopy()
		more.Spec.Ports[0].Port = 81
		a.setService(more) // still wrong, and told already
		_, requests = a.events()
		same(t, "requests", requests, 2)
		mended := keyedService("web", "rack")
		a.setService(mended)
		_, requests = a.events()
		same(t, "requests", requests, 2)
		a.setService(bad)
		got, requests = a.events()
		same(t, "events after the same mistake again", got, want)
		same(t, "requests", requests, 4)
	}, bad, keyedService("good", "rack"))
}

// The agent says later than the Service does that a mistake is mended, or that there is one.
func TestAWrongAnnotationIsOneEventWheneverTheAgentSaysSo(t *testing.T) {
	withAPI(t, nil, func(a *api) {
		want := []string{`web metadata.annotations[nearlb.io/topology-keys]: "rack": duplicate value; the annotation is ignored`}
		got, _ := a.events()
		same(t, "events before the agent says so", got, want)
		trouble := troubleOf("web", `"rack": duplicate value`)
		trouble.Field = "metadata.annotations[nearlb.io/topology-keys]"
		a.announced(trouble)
		a.setService(keyedService("web", "rack"))
		got, _ = a.events()
		same(t, "events when it is mended", got, want)
		a.announced()
		got, requests := a.events()
		same(t, "events when the agent says so, too", got, want)
		same(t, "requests", requests, 1)
	}, keyedService("web", "rack,rack"))
}

func TestAnEventIsTriedAgainAndNotWithoutEnd(t *testing.T) {
	var err error = errors.New("no answer")
	refuse := func(c *fakeclient.Clientset) {
		c.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return err != nil, nil, err })
	}
	withAPI(t, refuse, func(a *api) {
		time.Sleep(time.Hour)
		got, requests := a.events()
		same(t, "events", len(got), 0)
		same(t, "requests", requests, announceTry+1)
		err = apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "web", nil)
		a.setService(keyedService("web", "**,a,a"))
		time.Sleep(time.Hour)
		_, again := a.events()
		if again != requests+2 || a.logged("Event cannot be made") != 2 {
			t.Errorf("%d requests more after the server forbade it, said %d times: want 2, one for each mistake", again-requests, a.logged("Event cannot be made"))
		}
		err = nil
	}, keyedService("web", "*,rack"))
}

// Of many agents three tell, always the same.
func TestFewAgentsTellOfOneService(t *testing.T) {
	const nodes = 200
	in := apiSlice("any-a", "any")
	for n := range nodes {
		in.Endpoints = append(in.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.1.0.1"}, NodeName: new(fmt.Sprintf("n%d", n))})
	}
	all, _ := convert(in)
	for i := range 10 {
		name := lb.ServiceName{Namespace: "default", Name: fmt.Sprintf("web-%d", i)}
		var telling []string
		for n := range nodes {
			s := newStore(NodeConfig{Name: fmt.Sprintf("n%d", n)})
			s.apply([]object{all}, nil, &changes{})
			if (&announcer{store: s}).tells(name) {
				telling = append(telling, s.cfg.Name)
			}
		}
		if len(telling) != announcers {
			t.Errorf("of %v %d agents tell: %s", name, len(telling), strings.Join(telling, " "))
		}
	}
}
