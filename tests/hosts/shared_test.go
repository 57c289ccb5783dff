// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
)

// sharedClusters are those of the tests that leave nothing that the next one meets, by their options: starting agents, each of which loads its
// programs, takes longer than most such tests. Addresses and routes of a test's own Services may stay. A test that waits for long has its own
// cluster, beside others, or one of these to itself.
var sharedClusters = struct {
	sync.Mutex
	by map[string]*sharedCluster
}{by: map[string]*sharedCluster{}}

type sharedCluster struct {
	options options
	mu      sync.Mutex // held by the test whose turn it is
	*cluster
	outside *lab.Outside // nil: no stage was made
	counter counter      // what tests had until now
}

// sharing is the cluster of tests with these options.
func sharing(o options) *sharedCluster {
	sharedClusters.Lock()
	defer sharedClusters.Unlock()
	key := fmt.Sprintf("%+v", o)
	if sharedClusters.by[key] == nil {
		sharedClusters.by[key] = &sharedCluster{options: o}
	}
	return sharedClusters.by[key]
}

// onLinksAndBridge runs a test on a cluster with point-to-point pod links and on one with pods on a bridge, which other tests have as well,
// one after the other. Pods, Services and verdicts are the test's own.
func onLinksAndBridge(t *testing.T, test func(t *testing.T, c *cluster)) {
	t.Helper()
	for bridge, name := range podNetworks {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // beside the other kind
			test(t, sharing(options{bridge: bridge}).part(t))
		})
	}
}

// onLinks is such a cluster with point-to-point links alone.
func onLinks(t *testing.T) *cluster {
	t.Helper()
	return sharing(options{}).part(t)
}

// onStage is a stage on a cluster that other tests with these options have as well.
func onStage(t *testing.T, o options) *stage {
	t.Helper()
	return sharing(o).stage(t)
}

// stageFor is onStage or newStage, for a test that runs beside others (t.Parallel) either way.
func stageFor(t *testing.T, o options, shared bool) *stage {
	t.Helper()
	if shared {
		t.Parallel()
		return onStage(t, o)
	}
	return newStage(t, o)
}

// stage is a stage for one test. Clients of the node and those off it are the same for all tests, and no test has another's local ports.
func (s *sharedCluster) stage(t *testing.T) *stage {
	t.Helper()
	on := &stage{cluster: s.part(t), counter: &s.counter}
	on.here = on.node(0)
	if s.outside == nil {
		on.drawOutside()
		s.outside = on.outside
	}
	on.outside = s.outside
	on.services = 0 // the cluster numbers from what others had
	if on.ports.Load() > enoughPorts {
		on.ports.Store(0)
	}
	on.drawPods()
	return on
}

// Local ports and Services are numbered on from test to test, and from the first one again before they are used up: see port and service.
const (
	enoughPorts    = 12000
	enoughServices = 150
)

// part is the cluster for one test, which has it until it ends. Agents that a test before has ended start again.
func (s *sharedCluster) part(t *testing.T) *cluster {
	t.Helper()
	privileged.Require(t)
	s.mu.Lock()
	t.Cleanup(s.mu.Unlock)
	if s.cluster == nil {
		s.cluster, s.outside = makeCluster(t, s.options), nil
	}
	c := *s.cluster
	c.t, c.dropped, c.mine = t, map[string]bool{}, &mine{}
	if c.firstService > enoughServices {
		c.firstService = 0
	}
	t.Cleanup(func() { s.leave(&c) })
	for i, a := range c.agents {
		select {
		case <-a.Ended():
			c.agents[i] = c.startAgent(i)
		default:
		}
		c.mine.before = append(c.mine.before, c.verdicts(i))
	}
	return &c
}

// mine is what a test has in a cluster that it shares.
type mine struct {
	before   []map[string]uint64 // verdicts by then, by node
	services int                 // the highest number of its Services
	files    []string
	pods     []*lab.Pod
}

// leave takes what is the test's, after it has seen that no packet was dropped and no agent failed. A cluster in which a test failed is nobody's
// any more.
func (s *sharedCluster) leave(c *cluster) {
	c.checkDrops()
	c.checkAgents()
	if !c.t.Failed() {
		if err := c.takeAway(); err != nil {
			c.t.Error(err)
		}
	}
	if c.t.Failed() {
		logs.Show(c.t, c.Dir)
		s.cluster = nil
		if err := c.Close(); err != nil {
			c.t.Error(err)
		}
		return
	}
	s.nodes, s.agents, s.firstService = c.nodes, c.agents, c.firstService+c.mine.services
}

// checkAgents wants none to have failed: a test ends agents by signals, or asks them to end.
func (c *cluster) checkAgents() {
	for i, a := range c.agents {
		select {
		case <-a.Ended():
			if code := a.ExitCode(); code > 0 {
				c.t.Errorf("the agent of node %d has ended by itself, with exit status %d", i+1, code)
			}
		default:
		}
	}
}

// takeAway takes the test's files and pods, and puts its nodes back.
func (c *cluster) takeAway() error {
	var errs []error
	for _, n := range c.nodes {
		if at := slices.Index(c.mine.files, nodeFile(n)); at >= 0 {
			c.mine.files = slices.Delete(c.mine.files, at, at+1)
			errs = append(errs, c.Manifests.Write(nodeFile(n), n.Object()))
		}
	}
	for _, file := range c.mine.files {
		errs = append(errs, c.Manifests.Remove(file))
	}
	for _, pod := range c.mine.pods {
		if slices.Contains(pod.Node.Pods(), pod) { // the test may have deleted it
			errs = append(errs, pod.Delete())
		}
	}
	return errors.Join(errs...)
}

// keys is a directory for keys that nodes of shared clusters share.
var keys = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "nearlb-keys-") })

// keyFile is a file there, which has no key before somebody puts one there.
func keyFile(t *testing.T, name string) string {
	t.Helper()
	dir, err := keys()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name)
	if _, err := os.Stat(file); err != nil {
		shareKeys(t, file, "none")
	}
	return file
}

// keyed has nodes that share a key, and so hear of each other.
func keyed(t *testing.T) options {
	t.Helper()
	file := keyFile(t, "keyed")
	shareKeys(t, file, "a key that all nodes share")
	return options{agent: []string{"--tunnel-key-file", file}}
}

// closeShared takes the clusters down that tests shared, and their keys.
func closeShared() (err error) {
	if dir, _ := keys(); dir != "" {
		err = os.RemoveAll(dir)
	}
	for _, s := range sharedClusters.by {
		if s.cluster != nil {
			err = errors.Join(err, s.cluster.Close())
		}
	}
	return err
}

// checkDrops sees that no packet was dropped other than those that the test asked for.
func (c *cluster) checkDrops() {
	for i := range c.agents {
		n := c.nodes[i]
		for verdict, packets := range c.verdicts(i) {
			if strings.HasPrefix(verdict, "drop_") && packets > 0 && !c.dropped[verdict] {
				c.t.Errorf("%s: %d packets %s\n%s", n.Name, packets, verdict, c.sampled(n, verdict))
			}
		}
	}
}
