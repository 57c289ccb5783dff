// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// Node is a node of the lab, its Node object, and its agent.
type Node struct {
	*lab.Node
	Number int          // as Cluster.Node and PodOptions take it
	Agent  *lab.Process // nil: it has none
}

// NodeOptions describe a node. Without a name it is n and its number, which no other one has.
type NodeOptions struct {
	lab.NodeOptions
	NoAgent bool
	CPU     string // allocatable, which decides about topology-mode Auto; "" is 4
}

// threeNodes makes n1 and n2 in zone a, n3 in zone b.
func (c *Cluster) threeNodes() error {
	for _, zone := range []string{"a", "a", "b"} {
		if _, err := c.newNode(context.Background(), NodeOptions{NodeOptions: lab.NodeOptions{Zone: zone}}); err != nil {
			return err
		}
	}
	return nil
}

// NewNode adds a node, which is judged and taken away at the end of the test. Its agent runs; it may not serve yet.
func (c *Cluster) NewNode(o NodeOptions) *Node {
	c.T.Helper()
	n, err := c.newNode(c.T.Context(), o)
	c.must(err)
	c.T.Cleanup(func() {
		if err := c.removeNode(n); err != nil {
			c.T.Error(err)
		}
	})
	return n
}

func (c *Cluster) newNode(ctx context.Context, o NodeOptions) (*Node, error) {
	c.mu.Lock()
	c.numbers++
	if o.Name == "" {
		o.Name = fmt.Sprintf("n%d", c.numbers)
	}
	c.mu.Unlock()
	inLab, err := c.AddNode(o.NodeOptions)
	if err != nil {
		return nil, err
	}
	n := &Node{Node: inLab}
	if o.CPU == "" {
		o.CPU = "4"
	}
	if _, err := c.API.CoreV1().Nodes().Create(ctx, nodeObject(n, o), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if !o.NoAgent {
		if n.Agent, err = c.startAgent(n, c.options.Agent); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n.Number = len(c.nodes)
	c.nodes = append(c.nodes, n)
	return n, nil
}

// removeNode takes a node and its object away, after it has seen that no packet was dropped that this test did not ask for.
func (c *Cluster) removeNode(n *Node) error {
	err := c.unasked(n, c.asked)
	c.mu.Lock()
	c.nodes = slices.DeleteFunc(c.nodes, func(o *Node) bool { return o == n })
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gone := c.API.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(gone) {
		gone = nil // with all that the test took away
	}
	return errors.Join(err, gone, c.RemoveNode(n.Node))
}

// nodeObject is the Node as its kubelet registers it.
func nodeObject(n *Node, o NodeOptions) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: n.Name}
	if o.Zone != "" {
		labels[corev1.LabelTopologyZone] = o.Zone
	}
	have := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(o.CPU), corev1.ResourcePods: resource.MustParse("110")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity:    have,
			Allocatable: have,
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.V4.String()},
				{Type: corev1.NodeInternalIP, Address: n.V6.String()},
			},
		},
	}
}

// Node is a node by number, from 0.
func (c *Cluster) Node(number int) *Node {
	c.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if number >= len(c.nodes) {
		c.T.Fatalf("node %d: there are %d", number, len(c.nodes))
	}
	return c.nodes[number]
}

// StartAgent runs the node's agent, again if it ended, with further flags.
func (c *Cluster) StartAgent(n *Node, flags ...string) {
	c.T.Helper()
	var err error
	n.Agent, err = c.startAgent(n, append(append([]string(nil), c.options.Agent...), flags...))
	c.must(err)
}

func (c *Cluster) startAgent(n *Node, flags []string) (*lab.Process, error) {
	return n.Node.StartAgent(lab.AgentOptions{
		Command:    []string{"/proc/self/exe", "agent"},
		Args:       flags,
		Env:        []string{runAsCLI + "=1"},
		Kubeconfig: c.kubeconfig,
	})
}

// AwaitServing waits until the agents of all nodes have published every object that they know of.
func (c *Cluster) AwaitServing() {
	c.T.Helper()
	for _, n := range c.Nodes() {
		if n.Agent == nil {
			continue
		}
		pid := n.Agent.PID()
		c.Await(fmt.Sprintf("agent %d of %s serves", pid, n.Name), func() bool {
			status, err := agent.ReadStatus(c.LockDir(), n.PinPath())
			return err == nil && status.PID == pid && status.State == agent.Serving
		})
	}
}

// UpdateNode changes a Node object, and takes the change back at the end of the test.
func (c *Cluster) UpdateNode(n *Node, change func(*corev1.Node)) {
	c.T.Helper()
	var before *corev1.Node
	c.must(c.updateNode(c.T.Context(), n, func(o *corev1.Node) { before = o.DeepCopy(); change(o) }))
	c.T.Cleanup(func() {
		err := c.updateNode(context.Background(), n, func(o *corev1.Node) { o.Labels, o.Annotations, o.Spec = before.Labels, before.Annotations, before.Spec })
		if err != nil {
			c.T.Error(err)
		}
	})
}

func (c *Cluster) updateNode(ctx context.Context, n *Node, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := c.API.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(o)
		_, err = c.API.CoreV1().Nodes().Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
}
