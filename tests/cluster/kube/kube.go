// SPDX-License-Identifier: Apache-2.0

// Package kube runs a whole Kubernetes cluster on this machine: the control plane of package control with a scheduler, and nodes with a
// kubelet and a containerd each, which run real pods, connected by the reference CNI plugins, by flannel, or as
// a directory says.
//
// A node is a set of namespaces (network, mounts, processes, cgroups) with a file system in memory: its containers, images, pins and
// processes are the node's own. Nothing of this machine is changed but directories of the cluster's own: one in the directory of
// temporary files, and one in each hierarchy of cgroups, whose root (version 2) gives its children all controllers as long as the cluster
// lives. When the process that started the cluster ends, in whatever way, the kernel ends all nodes and forgets their files; the two
// directories are removed by Close, or by the next cluster.
//
//	c, err := kube.Start(ctx, kube.Options{Nodes: kube.ThreeNodes})
//	defer c.Close()
//	err = c.Import(ctx, "nearlb.tar")
//	err = c.Kubectl(ctx, "apply", "-k", "manifests/overlays/replace-kube-proxy")
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/control"
	"golang.org/x/sync/errgroup"
)

// Options of a cluster. The zero value is one without nodes.
type Options struct {
	Nodes   []lab.NodeOptions
	Network Network   // of the pods; without a name: PointToPoint
	Log     io.Writer // where it says what it does; nil: nowhere
}

// ThreeNodes are n1 and n2 in zone a, n3 in zone b.
var ThreeNodes = []lab.NodeOptions{{Name: "n1", Zone: "a"}, {Name: "n2", Zone: "a"}, {Name: "n3", Zone: "b"}}

// Cluster is a cluster that runs.
type Cluster struct {
	Lab        *lab.Lab
	Plane      *control.Plane
	API        kubernetes.Interface // the administrator's
	Nodes      []*Node
	Kubeconfig string // the administrator's, for programs of this machine

	log         io.Writer
	network     Network
	hierarchies []hierarchy
	loans       []loan // of the cgroups above the cluster's
	program     string // Kubernetes'
	access      *access
}

// Start makes a cluster and waits until its nodes are ready. What it made is taken back when it fails.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{log: o.Log, network: o.Network}
	if c.network.Name == "" {
		c.network = PointToPoint
	}
	if c.log == nil {
		c.log = io.Discard
	}
	if err := c.start(ctx, o); err != nil {
		c.ShowLogs()
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	c.say("building etcd and Kubernetes (minutes the first time, kept in the user's cache)")
	var err error
	if c.program, err = control.Program(); err != nil {
		return err
	}
	if c.hierarchies, err = hierarchies(); err != nil {
		return err
	}
	if c.Lab, err = lab.New(c.network.options()); err != nil {
		return err
	}
	removeStaleCgroups(c.hierarchies)
	c.say("starting etcd, API server, controller manager and scheduler")
	if c.Plane, err = control.Start(ctx, c.Lab, control.Options{Kubelets: true}); err != nil {
		return err
	}
	c.API = c.Plane.Admin
	if err := c.open(); err != nil {
		return err
	}
	c.say("starting containerd and kubelet on %s", names(o.Nodes))
	if err := c.startNodes(ctx, o.Nodes); err != nil {
		return err
	}
	if err := c.installNetwork(ctx); err != nil {
		return err
	}
	if err := c.awaitDaemonSets(ctx); err != nil {
		return err
	}
	c.say("waiting for the nodes to be ready")
	return c.awaitReady(ctx)
}

// installNetwork installs what runs in pods itself.
func (c *Cluster) installNetwork(ctx context.Context) error {
	switch {
	case c.network.Flannel != nil:
		return c.installFlannel(ctx)
	case c.network.Given != nil:
		return c.network.Given.install(ctx, c)
	default:
		return nil
	}
}

func (c *Cluster) startNodes(ctx context.Context, all []lab.NodeOptions) error {
	for _, o := range all {
		if _, err := c.addNode(o); err != nil {
			return err
		}
	}
	images, err := c.workloadImages()
	if err != nil {
		return err
	}
	return c.Import(ctx, images...)
}

func (c *Cluster) addNode(o lab.NodeOptions) (*Node, error) {
	n, err := c.Lab.AddNode(o)
	if err != nil {
		return nil, err
	}
	return c.startNode(n)
}

// AddNode gives a cluster that runs another node, with the images that its tests' pods need and these, and waits until it is ready.
func (c *Cluster) AddNode(ctx context.Context, o lab.NodeOptions, tarballs ...string) (*Node, error) {
	if c.network.Flannel != nil || c.network.Given != nil {
		return nil, fmt.Errorf("add a node: those of the network %s start with the cluster", c.network.Name)
	}
	n, err := c.addNode(o)
	if err != nil {
		return n, err
	}
	images, err := c.workloadImages()
	if err != nil {
		return n, err
	}
	if err := n.importAll(ctx, append(images, tarballs...)); err != nil {
		return n, err
	}
	return n, c.awaitReady(ctx)
}

// RemoveNode switches a node off and deletes its Node. What the API has of its pods goes when the controllers find out.
func (c *Cluster) RemoveNode(ctx context.Context, n *Node) error {
	i := slices.Index(c.Nodes, n)
	if i < 0 {
		return fmt.Errorf("remove node %s: it is none of the cluster's", n.Name)
	}
	c.Nodes = slices.Delete(c.Nodes, i, i+1)
	err := errors.Join(n.process.Kill(), c.Lab.RemoveNode(n.Node), removeCgroups(c.hierarchies, c.cgroup(n.Name)), os.Remove(filepath.Join(c.Lab.Dir, n.Name)))
	return errors.Join(err, c.API.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{}))
}

// Import gives the images of tarballs to all nodes.
func (c *Cluster) Import(ctx context.Context, tarballs ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes {
		group.Go(func() error { return n.importAll(ctx, tarballs) })
	}
	return group.Wait()
}

// awaitReady waits until the kubelets of all nodes say that pods may run there.
func (c *Cluster) awaitReady(ctx context.Context) error {
	var last error
	none := errors.New("there are not as many")
	err := lab.Await(patience, func() bool {
		var list *corev1.NodeList
		if list, last = c.API.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); last != nil {
			return ctx.Err() != nil
		}
		ready := 0
		last = none
		for _, n := range list.Items {
			if why := notReady(&n); why == "" {
				ready++
			} else {
				last = fmt.Errorf("%s is not ready: %s", n.Name, why)
			}
		}
		return ready == len(c.Nodes) || ctx.Err() != nil
	})
	if err == nil && ctx.Err() == nil {
		return nil
	}
	return errors.Join(errors.New("wait for nodes"), last, err, ctx.Err())
}

func notReady(n *corev1.Node) string {
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return condition.Message
		}
	}
	if len(n.Status.Conditions) == 0 || len(n.Spec.Taints) > 0 {
		return "it has just come"
	}
	return ""
}

// Kubectl runs kubectl as the administrator and gives what it printed. The error has what it said.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	command := exec.CommandContext(ctx, c.program, append([]string{"kubectl", "--kubeconfig", c.Kubeconfig}, args...)...)
	var said strings.Builder
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return string(out), nil
}

// Close ends the cluster and removes what there is of it. It may be called again.
func (c *Cluster) Close() error {
	var errs []error
	if c.access != nil {
		errs = append(errs, c.access.close())
	}
	if c.Lab != nil {
		for _, n := range c.Nodes {
			if n.process != nil {
				errs = append(errs, n.process.Kill())
			}
		}
		errs = append(errs, c.Lab.Close())
	}
	for _, n := range c.Nodes {
		errs = append(errs, removeCgroups(c.hierarchies, c.cgroup(n.Name)))
	}
	giveBack(c.loans)
	c.loans = nil
	return errors.Join(errs...)
}

// borrow says what is changed outside of the cluster's own directories, for the end to undo.
func (c *Cluster) borrow(loans []loan) {
	for _, l := range loans {
		c.say("%s has its cgroups get %s until the cluster ends (after a kill it stays so)", l.dir, strings.Join(l.controllers, ", "))
	}
	c.loans = append(c.loans, loans...)
}

// RemoveStale removes what clusters left that were killed.
func RemoveStale() {
	lab.RemoveStale()
	if all, err := hierarchies(); err == nil {
		removeStaleCgroups(all)
	}
}

// cgroup is the name of a node's, which says the directory that lives as long as the cluster.
func (c *Cluster) cgroup(node string) string { return filepath.Base(c.Lab.Dir) + "." + node }

func (c *Cluster) say(format string, args ...any) { fmt.Fprintf(c.log, format+"\n", args...) }

func names(all []lab.NodeOptions) string {
	var list []string
	for _, n := range all {
		list = append(list, n.Name)
	}
	return strings.Join(list, ", ")
}

func marshal(v any) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// ShowLogs prints the end of what each part of the cluster said.
func (c *Cluster) ShowLogs() {
	if c.Lab == nil {
		return
	}
	files, _ := filepath.Glob(filepath.Join(c.Lab.Dir, "log", "*"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		c.say("--- %s\n%s", filepath.Base(file), text[max(0, len(text)-2000):])
	}
}
