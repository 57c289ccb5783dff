// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/rig"
)

// Promise 1, with all there is to list: an agent that is killed and comes back loses no connection and follows what comes next.
func TestAnAgentThatIsKilledAndComesBackFollowsOn(t *testing.T) {
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	load := c.StartLoad(web.OnClusterIP(), rig.Ways(), client, c.Node(0))
	load.Round()
	if err := c.Node(0).Agent.Kill(); err != nil {
		t.Fatal(err)
	}
	load.Round()
	one.Terminate() // and serves on: UDP clients of the node that wait for an answer are ended if it does not
	load.Round()
	c.StartAgent(c.Node(0))
	web.AwaitServers(client, two)
	load.Round()
	load.End()
}

// The Kubernetes suite allows 30 seconds between a change of an object and what a client sees of it; most changes are to be seen
// within one. The middle of them all is judged: a machine that stands still now and then delays some, and not half of them.
func TestChangesAreFollowedInTime(t *testing.T) {
	const limit, usual = 30 * time.Second, time.Second
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 1), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	two.SetReady(false)
	web.AwaitServers(client, one)
	to := web.OnClusterIP()
	var lags []time.Duration
	for i := range 20 {
		w := rig.Ways()[i%4]
		comes, goes := two, one
		if i%2 == 1 {
			comes, goes = one, two
		}
		comes.SetReady(true)
		web.AwaitServers(client, one, two) // one change at a time: of two the controller may leave the second for a second
		goes.SetReady(false)
		lags = append(lags, onlyAnswer(c, client, comes, w, to(w.Six)))
		web.AwaitServers(client, comes)
	}
	slices.Sort(lags)
	middle, longest := lags[len(lags)/2], lags[len(lags)-1]
	t.Logf("from the change of a pod's status to answers that obey it: %s at least, %s in the middle, %s at most", lags[0], middle, longest)
	if longest > limit {
		t.Errorf("a change was followed after %s, want %s or less", longest, limit)
	}
	if middle >= usual {
		t.Errorf("half of the changes were followed after %s or later, want less than %s", middle, usual)
	}
}

// onlyAnswer is how long it takes until the first of ten answers in a row that are all of one pod: while two are chosen from, some
// answers are right by luck.
func onlyAnswer(c *rig.Cluster, client rig.Host, pod *rig.Pod, w rig.Way, to netip.AddrPort) (lag time.Duration) {
	c.T.Helper()
	start, right := time.Now(), 0
	c.Await(fmt.Sprintf("%s is all there is over %s", pod.Object, w), func() bool {
		for right < 10 {
			answer, err := client.Ask(c.T.Context(), w.Network, to, lab.DialOptions{Patience: time.Second})
			if err != nil || answer.Server != pod.Host.Name {
				right = 0
				return false
			}
			if right == 0 {
				lag = time.Since(start)
			}
			right++
		}
		return true
	})
	return lag
}
