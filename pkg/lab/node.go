// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"sync"
)

// NodeOptions describe a node. Name is required.
type NodeOptions struct {
	Name      string
	Zone      string // topology.kubernetes.io/zone; "" for none
	Bridge    bool   // pods are ports of a bridge instead of having point-to-point links
	UplinkMTU int    // of the link to the router; 0 is the lab's
	PodMTU    int    // of the links to the pods; 0 is the lab's
}

// Node is a namespace with an uplink to the router, a default route and pods.
type Node struct {
	Host
	Options NodeOptions

	lab    *Lab
	number int // from 1: part of every address of the node

	mu   sync.Mutex
	pods []*Pod
	next int // number of the next pod
}

// Uplink is the name of a node's device towards the router.
const Uplink = "uplink"

// Bridge is the name of the device that a node's pods are ports of, where NodeOptions has that.
const Bridge = "pods"

// AddNode adds a node. At most 250 fit the address plan.
func (l *Lab) AddNode(options NodeOptions) (*Node, error) {
	if options.UplinkMTU == 0 {
		options.UplinkMTU = l.options.MTU
	}
	if options.PodMTU == 0 {
		options.PodMTU = l.options.MTU
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.numbers++
	n := &Node{Options: options, lab: l, number: l.numbers, next: 10}
	n.V4, n.V6 = uplink4(n.number, false), uplink6(n.number, false)
	var err error
	if n.Namespace, err = newNamespace(options.Name); err != nil {
		return nil, err
	}
	l.nodes = append(l.nodes, n)
	if n.cgroup, err = l.cgroups.make(options.Name); err != nil {
		return nil, err
	}
	if err := n.build(); err != nil {
		return nil, fmt.Errorf("build node %s: %w", options.Name, err)
	}
	return n, nil
}

func (n *Node) build() error {
	if err := n.connect(); err != nil {
		return err
	}
	if n.Options.Bridge {
		if err := n.addPodBridge(); err != nil {
			return err
		}
	}
	if n.lab.options.Netfilter {
		return n.Netfilter(clusterRules)
	}
	return nil
}

// LosePower is what a node that loses its power looks like to the others: the router drops what the node sends. At the node's own device programs
// would come before netfilter, and answer for it.
func (n *Node) LosePower() error {
	return n.lab.Router.Netfilter("table netdev " + n.powerTable() + ` { chain ingress { type filter hook ingress device "` + n.port() + `" priority 0; policy drop; }; }`)
}

// RegainPower ends that.
func (n *Node) RegainPower() error {
	return n.lab.Router.Netfilter("delete table netdev " + n.powerTable())
}

func (n *Node) powerTable() string { return "dead-" + n.port() }

// SetUplinkMTU changes both ends of the node's link to the router.
func (n *Node) SetUplinkMTU(mtu int) error {
	return errors.Join(n.SetMTU(Uplink, mtu), n.lab.Router.SetMTU(n.port(), mtu))
}

// Pods are the node's pods in the order they were added.
func (n *Node) Pods() []*Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]*Pod(nil), n.pods...)
}

func (n *Node) close() error {
	var errs []error
	for _, p := range n.Pods() {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, n.Host.close(), n.cgroup.remove())...)
}
