// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// A pod's device is renamed, goes down and comes up, is moved to another namespace and back, and goes for good: the pod's TCP
// connections live as long as its device does, the other pods notice nothing, and a pod that comes is served.
func TestAPodsDeviceIsFollowedUnderTraffic(t *testing.T) {
	c := newCluster(t)
	n, err := c.AddNode(lab.NodeOptions{Name: "n1", Zone: "a", Bridge: true})
	c.must(err)
	c.must(c.Manifests.Write("node.yaml", n.Object()))
	mover, other, web1 := c.pod(n, "mover"), c.pod(n, "other"), c.servers(n, "a")[0]
	s := web(1, web1)
	c.publish("web.yaml", s)
	a := c.agent(n)
	a.serving()
	load := c.traffic()
	load.hold(other, s.address)
	load.ask(other, s.address, web1)
	kept := keep(c, mover, s.address)

	link, err := n.Link().LinkByName(mover.Device)
	c.must(err)
	c.must(n.Link().LinkSetName(link, "renamed"))
	a.awaitDevice("renamed", mover.Device)
	kept.goOn(web1)
	c.awaitAnswers(mover, s.address, web1)

	c.must(n.Link().LinkSetDown(link))
	load.more(50)
	c.must(n.Link().LinkSetUp(link))
	kept.goOn(web1)
	c.awaitAnswers(mover, s.address, web1)

	bridge, err := n.Link().LinkByName("pods")
	c.must(err)
	c.must(move(n.Namespace, c.Router, link))
	a.awaitDevice("", "renamed")
	load.more(50)
	away, err := c.Router.Link().LinkByName("renamed")
	c.must(err)
	c.must(move(c.Router, n.Namespace, away))
	back, err := n.Link().LinkByName("renamed")
	c.must(err)
	c.must(errors.Join(n.Link().LinkSetMaster(back, bridge), n.Link().LinkSetUp(back)))
	a.awaitDevice("renamed", "")
	kept.goOn(web1)
	c.awaitAnswers(mover, s.address, web1)

	c.must(n.Link().LinkDel(back))
	a.awaitDevice("", "renamed")
	late := c.pod(n, "late")
	c.awaitAnswers(late, s.address, web1)
	load.more(50)
	load.end(t)
}

// awaitDevice waits until programs are on one device, and on the other no more, without any error.
func (a *running) awaitDevice(on, off string) {
	a.t.Helper()
	a.await("programs on "+on+" and not on "+off, func(s agent.Status) bool {
		programs := map[string]int{}
		for _, row := range s.Devices {
			if row.Error != "" {
				return false
			}
			programs[row.Device]++
		}
		return (on == "" || programs[on] == 2) && (off == "" || programs[off] == 0)
	})
}

// move takes a device to another namespace.
func move(from, to *lab.Namespace, device netlink.Link) error {
	file, err := os.Open(to.Path())
	if err != nil {
		return err
	}
	defer file.Close()
	return from.Link().LinkSetNsFd(device, int(file.Fd()))
}

// kept is a TCP connection of each family that waits out what happens to its path.
type kept struct {
	*cluster
	conns []*lab.Conn
}

func keep(c *cluster, from client, to func(six bool) netip.AddrPort) *kept {
	c.t.Helper()
	k := &kept{cluster: c}
	for _, six := range []bool{false, true} {
		conn, err := from.Dial(context.Background(), "tcp", to(six), lab.DialOptions{Patience: patience})
		c.must(err)
		c.t.Cleanup(func() { _ = conn.Close() })
		k.conns = append(k.conns, conn)
	}
	return k
}

// goOn asks over the connections.
func (k *kept) goOn(server ...*lab.Pod) {
	k.t.Helper()
	for _, conn := range k.conns {
		answer, err := conn.Who()
		if err != nil || !slices.ContainsFunc(server, func(p *lab.Pod) bool { return p.Name == answer.Server }) {
			k.t.Errorf("%s -> %s: %+v, %v", conn.Local(), conn.Remote(), answer, err)
		}
	}
}

// The node's uplink goes down and comes up, loses its addresses and gets them back, and is deleted and made again with another
// index: connections of a client outside to backends on the node and on another go on, and new ones are answered.
func TestANetworkDeviceThatFlapsLosesNoConnection(t *testing.T) {
	c := newCluster(t)
	n1, n2 := c.node(), c.node()
	here, there := c.servers(n1, "a")[0], c.servers(n2, "d")[0]
	outside, err := c.AddOutside(lab.OutsideOptions{Name: "outside"})
	c.must(err)
	near, far := web(1, here), web(2, there)
	for i := range near.Ports {
		near.Ports[i].NodePort, far.Ports[i].NodePort = nodePort, nodePort+1
	}
	c.publish("web.yaml", near, far)
	a := c.agent(n1)
	a.serving()
	toNear := func(six bool) netip.AddrPort { return netip.AddrPortFrom(n1.Address(six), nodePort) }
	toFar := func(six bool) netip.AddrPort { return netip.AddrPortFrom(n1.Address(six), nodePort+1) }
	c.awaitAnswers(outside, toFar, there)
	keptNear, keptFar := keep(c, outside, toNear), keep(c, outside, toFar)
	check := func() {
		t.Helper()
		a.awaitDevice(lab.Uplink, "")
		keptNear.goOn(here)
		keptFar.goOn(there)
		c.awaitAnswers(outside, toNear, here)
		c.awaitAnswers(outside, toFar, there)
	}
	check()
	node, router := snapshot(c, n1.Namespace, lab.Uplink), snapshot(c, c.Router, "port1")

	uplink, err := n1.Link().LinkByName(lab.Uplink)
	c.must(err)
	c.must(n1.Link().LinkSetDown(uplink))
	c.must(n1.Link().LinkSetUp(uplink))
	node.restore()
	router.restore()
	check()

	// SNAT has no source until the agent was told that the address is back. A new client's SYN that comes before is dropped, and sent again.
	c.dropped["drop_no_source"] = true
	node.removeAddresses()
	node.restore()
	check()

	c.must(n1.Link().LinkDel(uplink))
	a.awaitDevice("", lab.Uplink)
	file, err := os.Open(c.Router.Path())
	c.must(err)
	defer file.Close()
	again := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: lab.Uplink}, PeerName: "port1", PeerNamespace: netlink.NsFd(file.Fd())}
	c.must(n1.Link().LinkAdd(again))
	node.restore()
	router.restore()
	check()
	if made, err := n1.Link().LinkByName(lab.Uplink); err != nil || made.Attrs().Index == uplink.Attrs().Index {
		t.Errorf("the new device has the old one's index (%v)", err)
	}
}

// ofDevice is what somebody configured on a device.
type ofDevice struct {
	*cluster
	ns        *lab.Namespace
	name      string
	addresses []netlink.Addr
	routes    []netlink.Route
}

func snapshot(c *cluster, ns *lab.Namespace, name string) *ofDevice {
	c.t.Helper()
	d := &ofDevice{cluster: c, ns: ns, name: name}
	link, err := ns.Link().LinkByName(name)
	c.must(err)
	d.addresses, err = ns.Link().AddrList(link, netlink.FAMILY_ALL)
	c.must(err)
	d.routes, err = ns.Link().RouteList(link, netlink.FAMILY_ALL)
	c.must(err)
	return d
}

// restore makes the device as it was: what is there already stays.
func (d *ofDevice) restore() {
	d.t.Helper()
	link, err := d.ns.Link().LinkByName(d.name)
	d.must(err)
	d.must(d.ns.Link().LinkSetUp(link))
	for _, a := range d.addresses {
		if !a.IP.IsLinkLocalUnicast() {
			d.must(d.ns.Link().AddrReplace(link, &netlink.Addr{IPNet: a.IPNet}))
		}
	}
	for _, r := range d.routes {
		if r.Gw == nil {
			continue // made with the address
		}
		d.must(d.ns.Link().RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: r.Dst, Gw: r.Gw}))
	}
}

func (d *ofDevice) removeAddresses() {
	d.t.Helper()
	link, err := d.ns.Link().LinkByName(d.name)
	d.must(err)
	for _, a := range d.addresses {
		if !a.IP.IsLinkLocalUnicast() {
			d.must(d.ns.Link().AddrDel(link, &netlink.Addr{IPNet: a.IPNet}))
		}
	}
}
