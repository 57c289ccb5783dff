// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Pod is a namespace with one device, eth0, and one address of each family.
type Pod struct {
	Host
	Node   *Node
	Device string // the node's end of its veth
}

// The gateway that pods on point-to-point links use: the same link-local addresses on every link.
const (
	gateway4 = "169.254.1.1"
	gateway6 = "fe80::1"
)

// AddPod adds a pod to the node. At most 240 fit the address plan.
func (n *Node) AddPod(name string) (*Pod, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := &Pod{Node: n, Device: fmt.Sprintf("pod%d", n.next)}
	p.V4, p.V6 = pod4(n.number, n.next), pod6(n.number, n.next)
	n.next++
	var err error
	if p.Namespace, err = newNamespace(name); err != nil {
		return nil, err
	}
	p.cgroup = n.cgroup
	n.pods = append(n.pods, p)
	if err := join(end{n.Namespace, p.Device}, end{p.Namespace, "eth0"}, n.Options.PodMTU); err != nil {
		return nil, err
	}
	attach := p.attachPointToPoint
	if n.Options.Bridge {
		attach = p.attachBridge
	}
	if err := attach(); err != nil {
		return nil, fmt.Errorf("connect pod %s: %w", name, err)
	}
	return p, nil
}

func (p *Pod) attachPointToPoint() error {
	n := p.Node
	return errors.Join(
		n.addAddress(p.Device, single(netip.MustParseAddr(gateway4))),
		n.addAddress(p.Device, netip.PrefixFrom(netip.MustParseAddr(gateway6), 64)),
		n.addRoute(p.Device, single(p.V4), netip.Addr{}),
		n.addRoute(p.Device, single(p.V6), netip.Addr{}),
		p.addAddress("eth0", single(p.V4)),
		p.addAddress("eth0", single(p.V6)),
		p.addRoute("eth0", everything(p.V4), netip.MustParseAddr(gateway4)),
		p.addRoute("eth0", everything(p.V6), netip.MustParseAddr(gateway6)),
	)
}

// addPodBridge gives the node a bridge that is its pods' gateway.
func (n *Node) addPodBridge() error {
	return errors.Join(
		n.addBridge(Bridge, n.Options.PodMTU, n.number),
		n.addAddress(Bridge, netip.PrefixFrom(pod4(n.number, 1), 24)),
		n.addAddress(Bridge, netip.PrefixFrom(pod6(n.number, 1), 64)),
	)
}

func (p *Pod) attachBridge() error {
	n := p.Node
	return errors.Join(
		n.addPort(Bridge, p.Device),
		p.addAddress("eth0", netip.PrefixFrom(p.V4, 24)),
		p.addAddress("eth0", netip.PrefixFrom(p.V6, 64)),
		p.addRoute("eth0", everything(p.V4), pod4(n.number, 1)),
		p.addRoute("eth0", everything(p.V6), pod6(n.number, 1)),
	)
}

// Delete takes the pod away as a node does with one that died: its servers fall silent and its device is gone.
func (p *Pod) Delete() error {
	n := p.Node
	n.mu.Lock()
	n.pods = slices.DeleteFunc(n.pods, func(o *Pod) bool { return o == p })
	n.mu.Unlock()
	device, err := n.link.LinkByName(p.Device)
	if err == nil {
		err = n.link.LinkDel(device)
	}
	return errors.Join(err, p.close())
}
