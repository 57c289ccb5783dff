// SPDX-License-Identifier: Apache-2.0

// Package rig is a cluster for tests: a real control plane (package control), nodes that are network namespaces with a real agent
// each, pods that are API objects with a real server behind their addresses. EndpointSlices are made by the real controllers;
// the agents log in with the ServiceAccount and the permissions of manifests/base/rbac.yaml and nothing more.
//
//	func TestMain(m *testing.M) { rig.Main(m) } // the test binary is the nearlb program too: agents are started from it
//
//	func TestX(t *testing.T) {
//		c := rig.Shared(t)                       // one for all tests of the package in turn, its nodes n1 and n2 in zone a, n3 in zone b
//		client := c.Client(0, "client")          // on n1
//		one := c.Server("web", "one", 0)         // a ready pod with label app=web on n1, which serves TCP and UDP on port 8080
//		two := c.Server("web", "two", 2)
//		web := c.Service("web", nil)             // selects app=web; both families; port 80 to 8080, TCP and UDP
//		web.AwaitServers(client, one, two)       // new connections over TCP and UDP, IPv4 and IPv6, reach these and no others
//		one.SetReady(false)
//		web.AwaitServers(client, two)
//		web.Update(func(s *corev1.Service) { s.Spec.TrafficDistribution = ptr.To("PreferSameZone") })
//	}
//
// Who breaks the control plane other than by a restart of its API server, or the nodes of all, makes a cluster of their own: New. c.Plane has the
// parts of the control plane, as c.Plane.APIServer.Kill() and c.Plane.StartAPIServer(ctx); c.API is the administrator's client; c.NewNode adds nodes
// for a test, with or without an agent; it is judged by what that test names with MayDrop. When a cluster ends it is an error if a request of an
// agent was refused, or was for v1 Endpoints, or if a packet was dropped for a reason that no test named with MayDrop.
package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearlb/nearlb/pkg/cli"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/repository"
)

// Patience is how long a change may take to reach the sockets: long, so that only what never comes is a failure. Controllers that lost
// the API server several times ask for it again after up to a minute.
const Patience = 3 * time.Minute

// Account is the agents' user name.
const Account = "system:serviceaccount:kube-system:nearlb"

// runAsCLI has the test binary be the nearlb program.
const runAsCLI = "NEARLB_TEST_RUN_CLI"

// Options of a cluster.
type Options struct {
	Lab     lab.Options
	Control control.Options
	Agent   []string      // further flags of the agents
	Breath  time.Duration // between two connections of a client of a load, where it goes on for minutes; 0: little
	// Refusals says that requests of the agents may be refused, because the test has that happen.
	Refusals bool
}

// Cluster is a cluster as one test sees it.
type Cluster struct {
	*lab.Lab
	T         *testing.T
	Plane     *control.Plane
	API       kubernetes.Interface // the administrator's
	Namespace string               // of the test's objects

	asked map[string]bool // verdicts that the test asks for: see MayDrop
	*shared
}

// shared is what all tests of a cluster have in common.
type shared struct {
	options    Options
	kubeconfig string // of the agents

	mu      sync.Mutex
	nodes   []*Node
	numbers int             // of nodes that there were
	dropped map[string]bool // verdicts that any test asks for
	outside map[string]*lab.Outside
	vips    int
	tests   int
	logs    logs.Logs
}

// Main runs the tests of a package, and takes down the cluster that they shared.
func Main(m *testing.M) {
	if os.Getenv(runAsCLI) != "" {
		os.Exit(cli.Main(os.Args[1:]))
	}
	flag.Parse()
	if err := flag.Set("test.parallel", "1000"); err != nil { // most wait for their turn: they are to keep nobody from beginning
		panic(err)
	}
	code := m.Run()
	if err := common.end(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// New makes a cluster without nodes, for one test, which runs beside others.
func New(t *testing.T, o Options) *Cluster {
	t.Helper()
	privileged.Require(t)
	t.Parallel()
	c, err := start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	return c.For(t)
}

// start makes a cluster whose agents may log in.
func start(ctx context.Context, o Options) (*Cluster, error) {
	l, err := lab.New(o.Lab)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Lab: l, shared: &shared{options: o, dropped: map[string]bool{}, outside: map[string]*lab.Outside{}, logs: logs.Logs{Dir: l.Dir}}}
	if c.Plane, err = control.Start(ctx, l, o.Control); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	c.API = c.Plane.Admin
	if err := c.Plane.Apply(ctx, Manifest("base/rbac.yaml")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if err := c.Plane.AwaitRight(ctx, Account, authorizationv1.ResourceAttributes{Verb: "list", Resource: "services"}); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if c.kubeconfig, err = c.Plane.Login(ctx, "kube-system", "nearlb"); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return c, nil
}

// Manifest is a file of manifests/.
func Manifest(name string) string {
	root, err := repository.Root()
	if err != nil {
		panic(err) // a test runs in its package's directory
	}
	return filepath.Join(root, "manifests", name)
}

// common is the cluster that the tests of a package share.
var common sharing

type sharing struct {
	turn    sync.Mutex // held by the test that has it
	once    sync.Once
	cluster *Cluster
	err     error
}

// Shared is the package's cluster with its three nodes, and a namespace for the objects of this test, which are taken away at
// its end. It starts with the first test that asks for it. One test has it after the other, beside those that have clusters of their own.
func Shared(t *testing.T) *Cluster {
	t.Helper()
	privileged.Require(t)
	t.Parallel()
	common.turn.Lock()
	began := time.Now()
	t.Cleanup(func() {
		t.Logf("it had the cluster for %.1f s", time.Since(began).Seconds()) // what go test says counts the wait for others
		common.turn.Unlock()
	})
	common.once.Do(func() {
		common.cluster, common.err = start(context.Background(), Options{})
		if common.err == nil {
			common.err = common.cluster.threeNodes()
		}
	})
	if common.err != nil {
		t.Fatal(common.err)
	}
	return common.cluster.For(t)
}

func (s *sharing) end() error {
	if s.cluster == nil {
		return nil
	}
	return s.cluster.end()
}

// For is the cluster for a test or a subtest, with a namespace of its own. If it fails, it prints what was logged since it began.
func (c *Cluster) For(t *testing.T) *Cluster {
	t.Helper()
	of := *c
	of.T, of.asked = t, map[string]bool{}
	c.logs.ShowIfFailed(t)
	c.mu.Lock()
	c.tests++
	of.Namespace = fmt.Sprintf("test-%d", c.tests)
	c.mu.Unlock()
	of.makeNamespace()
	return &of
}

// MayDrop says that the test asks for packets with that verdict, as drop_policy.
func (c *Cluster) MayDrop(verdict string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropped[verdict], c.asked[verdict] = true, true
}

// unasked is an error for each verdict by which a node dropped packets that were not to be.
func (c *Cluster) unasked(n *Node, asked map[string]bool) error {
	var errs []error
	for verdict, packets := range c.Verdicts(n) {
		if strings.HasPrefix(verdict, "drop_") && !asked[verdict] {
			errs = append(errs, fmt.Errorf("%s: %d packets %s", n.Name, packets, verdict))
		}
	}
	return errors.Join(errs...)
}

// end judges what is seen at the end of a cluster, and takes it down.
func (c *Cluster) end() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, c.unasked(n, c.dropped))
	}
	if !c.options.Refusals {
		errs = append(errs, c.Plane.CheckAudit(Account))
	}
	if errors.Join(errs...) != nil {
		c.logs.Show("the cluster")
	}
	return errors.Join(append(errs, c.Close())...)
}

// Await polls until the condition holds; what it is for is named in the failure.
func (c *Cluster) Await(what string, condition func() bool) {
	c.T.Helper()
	if err := lab.Await(Patience, condition); err != nil {
		c.T.Fatalf("%s: %v", what, err)
	}
}

// must ends the test if there is an error.
func (c *Cluster) must(err error) {
	c.T.Helper()
	if err != nil {
		c.T.Fatal(err)
	}
}
