// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/lb"
)

func troubleOf(service, message string) Trouble {
	return Trouble{Service: lb.ServiceName{Namespace: "default", Name: service}, Reason: ReasonProblem, Field: "spec.externalIPs", Message: message}
}

// announced gives the announcements the time that they may take.
func (a *api) announced(troubles ...Trouble) {
	a.source.Announce(troubles)
	time.Sleep(announceLater)
	synctest.Wait()
}

func TestWhatTheAgentFindsWrongIsAnEventOnce(t *testing.T) {
	web := apiService("web")
	web.UID = "u-1"
	withAPI(t, nil, func(a *api) {
		clash := troubleOf("web", "192.0.2.1:80/TCP belongs to Service default/first")
		full := Trouble{Service: clash.Service, Reason: ReasonPublication, Message: "table slots is full (10 entries)", Same: "table_full", Here: true}
		a.announced(clash, full, troubleOf("unknown", "nobody has such a Service"))
		want := []string{"web spec.externalIPs: 192.0.2.1:80/TCP belongs to Service default/first", "web table slots is full (10 entries)"}
		got, requests := a.events()
		same(t, "events", got, want)
		same(t, "requests", requests, 2)
		list, err := a.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, e := range list.Items {
			same(t, "object", string(e.InvolvedObject.UID)+" "+e.Type+" "+e.Source.Host, "u-1 Warning n1")
			same(t, "reason", e.Reason == ReasonPublication, strings.Contains(e.Message, "full"))
		}
		full.Message = "table backends is full (10 entries)" // in other words, and of the same kind
		for range 10 {
			a.announced(clash, full)
		}
		_, requests = a.events()
		same(t, "requests when nothing is new", requests, 2)
		a.announced(clash)
		a.announced(clash, full)
		_, requests = a.events()
		same(t, "requests when one came back", requests, 3)
		time.Sleep(announceAgain)
		_, requests = a.events()
		same(t, "requests when the API server has forgotten", requests, 5)
	}, web)
}

// What every node sees a few tell; what one node sees it tells itself, and under a name that all have for it.
func TestWhatIsOfOneNodeIsToldByIt(t *testing.T) {
	objects := []runtime.Object{apiService("web")}
	for n := range 60 {
		objects = append(objects, apiNode(fmt.Sprintf("n%d", n), "a"))
	}
	withAPI(t, nil, func(a *api) {
		c := a.source.(*cluster)
		name := lb.ServiceName{Namespace: "default", Name: "web"}
		tells := c.announcer.tells(name)
		everywhere, here := troubleOf("web", "all see it"), troubleOf("web", "only here")
		here.Here, here.Same = true, "of a node"
		a.announced(everywhere, here)
		got, _ := a.events()
		want := []string{"web spec.externalIPs: only here"}
		if tells {
			want = []string{"web spec.externalIPs: all see it", want[0]}
		}
		same(t, "events", got, want)
		elsewhere := here
		elsewhere.Message = "only there"
		same(t, "name", c.announcer.event("u", here).Name, c.announcer.event("u", elsewhere).Name)
	}, objects...)
}

func TestManyEventsAreMadeSlowly(t *testing.T) {
	const services = 5 * announceBurst
	objects, troubles := []runtime.Object{}, []Trouble{}
	for i := range services {
		name := fmt.Sprintf("web-%d", i)
		objects, troubles = append(objects, apiService(name)), append(troubles, troubleOf(name, "wrong"))
	}
	withAPI(t, nil, func(a *api) {
		began := time.Now()
		a.source.Announce(troubles)
		same(t, "the agent waited", time.Since(began), time.Duration(0))
		_, requests := a.events()
		same(t, "requests at once", requests, announceBurst)
		time.Sleep(10 * time.Second)
		_, requests = a.events()
		same(t, "requests later", requests, announceBurst+10*announceRate)
		time.Sleep(time.Duration(services/announceRate) * time.Second)
		_, requests = a.events()
		same(t, "requests in the end", requests, services)
	}, objects...)
}

// The Service that is refused has its Event too: its object is there.
func TestARefusedServiceHasItsEvent(t *testing.T) {
	bad := apiService("Web_1")
	bad.UID = "u-2"
	withAPI(t, nil, func(a *api) {
		problems := a.source.Problems()
		same(t, "problems", len(problems), 1)
		a.announced(troubleOf("Web_1", problems[0].Message))
		list, err := a.client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		same(t, "events", len(list.Items), 1)
		same(t, "object", string(list.Items[0].InvolvedObject.UID), "u-2")
	}, bad)
}

func TestTheTextOfAnEventStaysOnItsLineAndShort(t *testing.T) {
	for text, want := range map[string]string{
		"plain: \"quoted\" ä 漢": "plain: \"quoted\" ä 漢", "a\nb\tc\x1b[31m\u202e\x00": `a\nb\tc\x1b[31m\u202e\x00`, "\xff": `\ufffd`,
	} {
		same(t, "text", eventText(text), want)
	}
	for _, long := range []string{strings.Repeat("ä", eventMessage), strings.Repeat("\n", eventMessage)} {
		if got := eventText(long); len(got) > eventMessage || len(got) < eventMessage-10 || !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
			t.Errorf("%d bytes: %s", len(got), got)
		}
	}
}
