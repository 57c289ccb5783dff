// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
)

// sharedClusters are those of the tests that leave agents and links alone and wait for little, by whether pods are on a bridge: starting three
// agents, each of which loads its programs, takes longer than most such tests. A test that waits for long has its own, beside others.
var sharedClusters = map[bool]*sharedCluster{false: {}, true: {bridge: true}}

type sharedCluster struct {
	bridge bool
	mu     sync.Mutex // held by the test whose turn it is
	*cluster
	outside *lab.Outside // nil: no stage was made
	parts   int
}

// onLinksAndBridge runs a test on a cluster with point-to-point pod links and on one with pods on a bridge, which other tests have as well,
// one after the other. Pods, Services and verdicts are the test's own.
func onLinksAndBridge(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	for bridge, name := range podNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside the other kind
			test(t, sharedClusters[bridge].part(t))
		})
	}
}

// onLinks is such a cluster with point-to-point links alone.
func onLinks(t *testing.T) *cluster {
	t.Helper()
	return sharedClusters[false].part(t)
}

// onStage is a stage on onLinks.
func onStage(t *testing.T) *stage {
	t.Helper()
	return sharedClusters[false].stage(t)
}

// stage is a stage for one test. Clients of the node and those off it are the same for all tests, and no test has another's local ports.
func (s *sharedCluster) stage(t *testing.T) *stage {
	t.Helper()
	on := &stage{cluster: s.part(t), counter: &counter{}}
	on.here = on.node(0)
	if s.outside == nil {
		on.drawOutside()
		s.outside = on.outside
	}
	on.outside = s.outside
	on.ports.Store(uint32(s.parts * portsOfAPart % 18000))
	on.commands.Store(uint32(s.parts * portsOfAPart))
	on.drawPods()
	return on
}

// portsOfAPart is how many local ports a test has on a stage at most.
const portsOfAPart = 500

// part is the cluster for one test, which has it until it ends.
func (s *sharedCluster) part(t *testing.T) *cluster {
	t.Helper()
	privileged.Require(t)
	s.mu.Lock()
	t.Cleanup(s.mu.Unlock)
	if s.cluster == nil {
		l, err := lab.New(lab.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s.cluster = &cluster{Lab: l, options: options{bridge: s.bridge}}
	}
	c := *s.cluster
	c.t, c.dropped, c.mine = t, map[string]bool{}, &mine{}
	c.node(2)
	s.cluster.nodes, s.cluster.agents = c.nodes, c.agents
	s.parts++
	c.firstService = s.parts * servicesOfAPart % 240
	for i := range c.nodes {
		c.mine.before = append(c.mine.before, c.verdicts(i))
	}
	t.Cleanup(c.leave)
	return &c
}

// servicesOfAPart is how many Services a test has at most.
const servicesOfAPart = 8

// mine is what a test has in a cluster that it shares.
type mine struct {
	before []map[string]uint64 // verdicts by then, by node
	files  []string
	pods   []*lab.Pod
}

// leave takes what is the test's, after it has seen that no packet was dropped.
func (c *cluster) leave() {
	c.checkDrops()
	if c.t.Failed() {
		logs.Show(c.t, c.Dir)
	}
	var errs []error
	for _, file := range c.mine.files {
		errs = append(errs, c.Manifests.Remove(file))
	}
	for _, pod := range c.mine.pods {
		if slices.Contains(pod.Node.Pods(), pod) { // the test may have deleted it
			errs = append(errs, pod.Delete())
		}
	}
	if err := errors.Join(errs...); err != nil {
		c.t.Error(err)
	}
}

// closeShared takes the clusters down that tests shared.
func closeShared() (err error) {
	for _, s := range sharedClusters {
		if s.cluster != nil {
			err = errors.Join(err, s.cluster.Close())
		}
	}
	return err
}

// checkDrops sees that no packet was dropped other than those that the test asked for.
func (c *cluster) checkDrops() {
	for i, n := range c.nodes {
		for verdict, packets := range c.verdicts(i) {
			if strings.HasPrefix(verdict, "drop_") && packets > 0 && !c.dropped[verdict] {
				c.t.Errorf("%s: %d packets %s\n%s", n.Name, packets, verdict, c.sampled(n, verdict))
			}
		}
	}
}
