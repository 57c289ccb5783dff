// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
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
	*Namespace
	Options NodeOptions
	V4, V6  netip.Addr // InternalIPs

	lab    *Lab
	number int // from 1: part of every address of the node

	mu      sync.Mutex
	pods    []*Pod
	next    int // number of the next pod
	servers []*Server
}

// Uplink is the name of a node's device towards the router.
const Uplink = "uplink"

const bridgeName = "pods"

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
	n := &Node{Options: options, lab: l, number: len(l.nodes) + 1, next: 10}
	n.V4, n.V6 = uplink4(n.number, false), uplink6(n.number, false)
	var err error
	if n.Namespace, err = newNamespace(options.Name); err != nil {
		return nil, err
	}
	l.nodes = append(l.nodes, n)
	if err := n.connect(l.Router); err != nil {
		return nil, fmt.Errorf("connect node %s: %w", options.Name, err)
	}
	return n, nil
}

// connect makes the uplink and routes both ways.
func (n *Node) connect(router *Namespace) error {
	if err := n.forward(); err != nil {
		return err
	}
	port := fmt.Sprintf("port%d", n.number)
	if err := join(end{n.Namespace, Uplink}, end{router, port}, n.Options.UplinkMTU); err != nil {
		return err
	}
	for _, f := range []struct {
		own, router, pods netip.Addr
		subnet, podBits   int
	}{
		{n.V4, uplink4(n.number, true), pod4(n.number, 0), 24, 24},
		{n.V6, uplink6(n.number, true), pod6(n.number, 0), 64, 64},
	} {
		err := errors.Join(
			n.addAddress(Uplink, netip.PrefixFrom(f.own, f.subnet)),
			router.addAddress(port, netip.PrefixFrom(f.router, f.subnet)),
			n.addRoute(Uplink, everything(f.own), f.router),
			router.addRoute(port, netip.PrefixFrom(f.pods, f.podBits), f.own),
		)
		if err != nil {
			return err
		}
	}
	if n.Options.Bridge {
		return n.addBridge()
	}
	return nil
}

// SetUplinkMTU changes both ends of the node's link to the router.
func (n *Node) SetUplinkMTU(mtu int) error {
	return errors.Join(n.SetMTU(Uplink, mtu), n.lab.Router.SetMTU(fmt.Sprintf("port%d", n.number), mtu))
}

// Address is the node's address of one family.
func (n *Node) Address(six bool) netip.Addr {
	if six {
		return n.V6
	}
	return n.V4
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
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, n.Namespace.close())...)
}
