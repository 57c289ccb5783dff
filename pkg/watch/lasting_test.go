// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"testing"
	"testing/synctest"
	"time"

	clienttesting "k8s.io/client-go/testing"
)

// asked counts requests of the fake API server, those left out that only ask for its version.
func (a *api) asked(verb, resource string) (n int) {
	for _, action := range a.client.Actions() {
		if list, ok := action.(clienttesting.ListActionImpl); action.Matches(verb, resource) && (!ok || list.ListOptions.Limit != 1) {
			n++
		}
	}
	return n
}

// A server that was restored from a backup may have passed the version that a watch goes on from, with other changes before it.
func TestObjectsAreListedAgainSomeTimeAfterAWatchWasCutOff(t *testing.T) {
	var l lapses
	withGuard(t, halfFor(grace), l.install, func(a *api) {
		time.Sleep(time.Minute)
		l.of("endpointslices").Stop()
		synctest.Wait()
		a.setSlice(apiSlice("web-a", "web", addresses(5)...)) // which no watch tells of
		same(t, "web", endpointsOf(a.source, "web"), 2)
		time.Sleep(relistLatest + listLatest)
		synctest.Wait()
		same(t, "web, after the list", endpointsOf(a.source, "web"), 5)
		same(t, "lists", a.asked("list", "endpointslices"), 2)
		same(t, "lists of others", a.asked("list", "services"), 1)
	}, shop()...)
}

// A watch that says nothing, and that nobody ends, is begun anew when its time is over, without a list.
func TestAWatchThatNobodyEndsIsBegunAnew(t *testing.T) {
	var l lapses
	withGuard(t, halfFor(grace), l.install, func(a *api) {
		first := l.of("services")
		time.Sleep(time.Hour)
		synctest.Wait()
		if l.of("services") == first {
			t.Error("the first watch is still there")
		}
		same(t, "lists", a.asked("list", "services"), 1)
		if n := a.asked("watch", "services"); n < 5 || n > 13 {
			t.Errorf("%d watches in an hour", n)
		}
		same(t, "said", len(a.lines), 0)
	}, shop()...)
}
