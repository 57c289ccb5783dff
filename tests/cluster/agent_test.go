// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

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

// While the API server is away traffic goes on, and what changes after its return is followed.
func TestAnAPIServerThatRestartsIsFollowedOn(t *testing.T) {
	c := rig.Shared(t)
	client, one, two := c.Client(0, "client"), c.Server("web", "one", 0), c.Server("web", "two", 2)
	web := c.Service("web", nil)
	web.AwaitServers(client, one, two)
	load := c.StartLoad(web.OnClusterIP(), rig.Ways(), client, c.Node(1))
	if err := c.Plane.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	load.Round()
	if err := c.Plane.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.Round()
	one.Terminate() // and serves on, as above
	web.AwaitServers(client, two)
	load.Round()
	load.End()
	c.Service("next", func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} }).AwaitServers(client, two)
}

// The Kubernetes suite allows 30 seconds between a change of an object and what a client sees of it. What it takes here is in
// the log: it is how fast the machine is at that moment, and no subject of a test.
func TestChangesAreFollowedInTime(t *testing.T) {
	const limit = 30 * time.Second
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
		goes.SetReady(false)
		start := time.Now()
		c.Await(fmt.Sprintf("%s is all there is over %s", comes.Object, w), func() bool {
			answer, err := client.Ask(t.Context(), w.Network, to(w.Six), lab.DialOptions{Patience: time.Second})
			return err == nil && answer.Server == comes.Host.Name
		})
		lags = append(lags, time.Since(start))
		web.AwaitServers(client, comes)
	}
	slices.Sort(lags)
	t.Logf("from the change of a pod's status to an answer that obeys it: %s at least, %s in the middle, %s at most", lags[0], lags[len(lags)/2], lags[len(lags)-1])
	if longest := lags[len(lags)-1]; longest > limit {
		t.Errorf("a change was followed after %s, want %s or less", longest, limit)
	}
}
