// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// What goes through the program at XDP leaves for another node: it wants routes, which are made in a network namespace of their own.

// wayCarried is the path of packets that go through the tunnel to the backend's node.
const wayCarried = "carried"

// xdpWays are the paths at XDP.
var xdpWays = []string{"established", wayCarried, "new", "refused", "miss"}

// snatWays are those of them that are measured at TC, too.
var snatWays = []string{"established", "new"}

// bySNAT is the path at TC of what a way of snatWays is at XDP.
func (w world) bySNAT(way string) string { return "from_net/" + w.name + "/" + way + "_by_snat" }

// tunnelPort is the UDP port of the tunnel.
const tunnelPort = 6091

func (p part) wantsXDP() bool {
	return slices.ContainsFunc(worlds(), func(w world) bool {
		return slices.ContainsFunc(snatWays, func(way string) bool { return p.wants(w.bySNAT(way)) }) ||
			slices.ContainsFunc(xdpWays, func(way string) bool { return p.wants("xdp/" + w.name + "/" + way) })
	})
}

// elsewhere runs in a network namespace that goes with its thread.
func elsewhere(run func() (Result, error)) (result Result, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespace with it
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread() // this thread would not end: while it is taken, the next one is another
			result, err = elsewhere(run)
			return
		}
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("bench: make a network namespace: %w", err)
			return
		}
		result, err = run()
	}()
	<-done
	return result, err
}

// own is the node's address, next the router of all other nodes.
func (w world) own() netip.Addr  { return w.address("172.31.0.1", "fd00:31::1") }
func (w world) next() netip.Addr { return w.address("172.31.0.2", "fd00:31::2") }

// remote is a frontend whose backends are all on other nodes; refused one that drops what comes from off the node.
func (w world) remote() netip.AddrPort {
	return netip.AddrPortFrom(w.address("203.0.113.1", "2001:db8:1::1"), 80)
}

func (w world) refused() netip.AddrPort {
	return netip.AddrPortFrom(w.address("203.0.113.2", "2001:db8:1::2"), 80)
}

// nextMAC is the router's.
var nextMAC = net.HardwareAddr{2, 0, 0, 0, 0, 2}

const loopback = 1 // ifindex of the device that the kernel takes test frames for

// prepareXDP makes routes and publishes the services of the paths at XDP, to which packets are carried or go by SNAT.
func (b *bench) prepareXDP(carried bool) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "nodes", HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, PeerName: "peer"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("make a device: %w", err)
	}
	peer, err := netlink.LinkByName(link.PeerName)
	if err != nil {
		return fmt.Errorf("make a device: %w", err)
	}
	err = errors.Join(
		netlink.LinkSetUp(peer), netlink.LinkSetUp(link),
		os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0),
	)
	config := maps.Config{SNATPorts: maps.PortRange{First: 1024, Last: 65535}, Devices: map[uint32]maps.DeviceSources{uint32(link.Index): {}}}
	for _, w := range worlds() {
		if w.protocol == lb.TCP {
			err = errors.Join(err, w.routes(link))
			config.Sources = append(config.Sources, w.own())
		}
	}
	if err != nil {
		return fmt.Errorf("make routes: %w", err)
	}
	if carried {
		config.Node4, config.Node6, config.Tunnel = tunnel()
	}
	if err := b.tables.Configure(config); err != nil {
		return err
	}
	for _, w := range worlds() {
		if _, err := b.tables.Apply(w.far(carried)); err != nil {
			return err
		}
	}
	_, err = b.objects.SetXDPDevices([]bpf.XDPDevice{
		{Ifindex: loopback, MAC: make(net.HardwareAddr, 6), Takes: true},
		{Ifindex: uint32(link.Index), MAC: link.HardwareAddr, Sends: true},
	})
	return err
}

// farNode is where the backends of far are.
const farNode = "far"

// tunnel gives the node's addresses, and the other node as one that takes what is carried.
func tunnel() (own4, own6 netip.Addr, t maps.Tunnel) {
	own, next := map[int]netip.Addr{}, []netip.Addr{}
	for _, w := range worlds() {
		if w.protocol == lb.TCP {
			own[w.own().BitLen()] = w.own()
			next = append(next, w.next())
		}
	}
	own4, own6 = own[32], own[128]
	return own4, own6, maps.Tunnel{Port: tunnelPort, Nodes: map[string]maps.TunnelNode{
		"here": {Addresses: []netip.Addr{own4, own6}, Carries: true}, farNode: {Addresses: next, Carries: true},
	}}
}

// routes has everything go by one device and one router.
func (w world) routes(link netlink.Link) error {
	bits := w.own().BitLen()
	address := &netlink.Addr{IPNet: &net.IPNet{IP: w.own().AsSlice(), Mask: net.CIDRMask(bits-8, bits)}, Flags: unix.IFA_F_NODAD}
	everything := &net.IPNet{IP: make(net.IP, bits/8), Mask: make(net.IPMask, bits/8)}
	return errors.Join(
		netlink.AddrAdd(link, address),
		netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: w.next().AsSlice(), HardwareAddr: nextMAC}),
		netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything, Gw: w.next().AsSlice(), Src: w.own().AsSlice()}),
	)
}

// farBackends have ports enough for a million connections through SNAT several times over: where few are left, each search takes long.
const farBackends = 64

// far is the Service of both frontends.
func (w world) far(carried bool) lb.Decision {
	d := w.decision(farBackends)
	d.Service.Name = w.name + "-far"
	if carried {
		d.OffNode = lb.OffNodeCarry
	}
	for i := range d.Backends {
		d.Backends[i].Near, d.Backends[i].Node = lb.TierCluster, farNode
	}
	f := d.Frontends[0]
	f.Key.Address, f.Kind, f.Port.Service = w.remote(), lb.KindLoadBalancer, d.Service
	f.External.Tiers[0].Name = lb.TierCluster
	refused := f
	refused.Key.Address, refused.External = w.refused(), lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: lb.ListLocal}
	d.Frontends = []lb.Frontend{f, refused}
	return d
}

// xdpCourse is what a path at XDP is about.
type xdpCourse struct {
	world   world
	counted bool // it has a verdict there; else it passes as it is
	leaves  bool // by its way
	carried bool // by the tunnel
	tc      bool // of from_net: the kernel is yet to write who is next
}

// ready says of every flow that both sides have spoken, of UDP the client twice: what goes on.
func (x *xdpCourse) ready(b *bench) error {
	memory, err := b.objects.Flows.Memory()
	if err != nil {
		return fmt.Errorf("read table flows: %w", err)
	}
	var f bpf.NearlbFlow
	at := int(unsafe.Offsetof(f.Seen))
	size := int(unsafe.Sizeof(f))
	spoken := uint8(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)
	if x.world.protocol == lb.UDP {
		spoken |= uint8(bpf.NearlbFlowSeenSEEN_CLIENT_WAITS) // SEEN_WENT_ON
	}
	all := make([]byte, memory.Size())
	if _, err := memory.ReadAt(all, 0); err != nil {
		return fmt.Errorf("read table flows: %w", err)
	}
	for i := 0; i < len(all); i += size {
		if binary.NativeEndian.Uint32(all[i:])&uint32(bpf.NearlbFlowPhaseFLOW_PHASE_MASK) == uint32(bpf.NearlbFlowPhaseFLOW_LIVE) {
			all[i+at] |= spoken
		}
	}
	if _, err := memory.WriteAt(all, 0); err != nil {
		return fmt.Errorf("write table flows: %w", err)
	}
	return nil
}

// leftToTC tells whether a packet that has a verdict at XDP passed as it is.
func (x *xdpCourse) leftToTC(in frame, got []byte, counted uint64) bool {
	return x.counted && counted == 0 && bytes.Equal(got, in.bytes())
}

// check judges the verdict that was counted, and what became of the frame.
func (x *xdpCourse) check(in frame, got []byte, counted uint64) error {
	if (counted == 1) != x.counted || counted > 1 {
		return fmt.Errorf("check the path: %d packets were counted; the packet became %x", counted, got)
	}
	if !x.leaves {
		if want := in.bytes(); !bytes.Equal(got, want) {
			return fmt.Errorf("check the path: packet out is %x, want %x", got, want)
		}
		return nil
	}
	if x.carried {
		return x.checkCarried(in, got)
	}
	l := in.layout()
	source, _ := netip.AddrFromSlice(got[l.source+2-uint32(in.src.Addr().BitLen()/8) : l.source+2])
	if !x.tc && !bytes.Equal(got[:6], nextMAC) || source != x.world.own() {
		return fmt.Errorf("check the path: packet out is %x, want it to leave from %s for %s", got, x.world.own(), nextMAC)
	}
	return nil
}

// checkCarried wants the packet behind the headers of the tunnel: from this node to the other one's port.
func (x *xdpCourse) checkCarried(in frame, got []byte) error {
	const ethernet = 14
	sent, bits := in.bytes()[ethernet:], x.world.own().BitLen()
	ip, address := 20, 12 // of the outer header: its length, and where it has the source
	if bits == 128 {
		ip, address = 40, 8
	}
	front := len(got) - len(sent)
	if front < ethernet+ip+8 || !bytes.Equal(got[:6], nextMAC) {
		return fmt.Errorf("check the path: packet out is %x, want it in the tunnel, for %s", got, nextMAC)
	}
	outer := got[ethernet:front]
	source, _ := netip.AddrFromSlice(outer[address : address+bits/8])
	to, _ := netip.AddrFromSlice(outer[address+bits/8 : address+bits/4])
	port := binary.BigEndian.Uint16(outer[ip+2:])
	if inner := got[front:]; source != x.world.own() || to != x.world.next() || port != tunnelPort || !bytes.Equal(inner[address:], sent[address:]) {
		return fmt.Errorf("check the path: packet out is %x, want %x in the tunnel from %s to %s, port %d", got, sent, x.world.own(), x.world.next(), tunnelPort)
	}
	return nil
}

// atXDP are the paths of one world.
func (b *bench) atXDP(w world, p part) ([]*course, error) {
	t := &tasks{bench: b, want: p.wants}
	maker, err := b.wrap(b.objects.FromNet, w.first(w.remote()), true)
	if err != nil {
		return nil, err
	}
	prefix := "xdp/" + w.name + "/"
	add := func(way string, flows int, verdict bpf.NearlbVerdict, f frame, x xdpCourse) {
		x.world = w
		c := course{name: prefix + way, flows: flows, hook: bpf.NearlbHookHOOK_XDP, verdict: verdict, xdp: &x}
		if flows > 0 {
			c.maker = maker
		}
		c.fresh = way == "new" || way == "refused"
		t.add(c, b.objects.FromNetXdp, f, true)
	}
	for _, n := range p.Flows {
		add("established", n, bpf.NearlbVerdictVERDICT_TRANSLATE_ESTABLISHED, w.frame(w.remote()), xdpCourse{counted: true, leaves: true})
	}
	for _, n := range p.Flows {
		add(wayCarried, n, bpf.NearlbVerdictVERDICT_TRANSLATE_ESTABLISHED, w.frame(w.remote()), xdpCourse{counted: true, leaves: true, carried: true})
	}
	add("new", 0, bpf.NearlbVerdictVERDICT_TRANSLATE_BALANCE, w.first(w.remote()), xdpCourse{counted: true, leaves: true})
	add("refused", 0, bpf.NearlbVerdictVERDICT_DROP_NO_LOCAL_ENDPOINTS, w.first(w.refused()), xdpCourse{counted: true})
	add("miss", 0, bpf.NearlbVerdictVERDICT_PASS_NOT_SERVICE, w.frame(w.stranger()), xdpCourse{})
	for _, n := range p.Flows {
		t.add(course{name: w.bySNAT("established"), flows: n, hook: bpf.NearlbHookHOOK_FROM_NET, verdict: bpf.NearlbVerdictVERDICT_TRANSLATE_ESTABLISHED, maker: maker,
			xdp: &xdpCourse{world: w, counted: true, leaves: true, tc: true}}, b.objects.FromNet, w.frame(w.remote()), true)
	}
	t.add(course{name: w.bySNAT("new"), hook: bpf.NearlbHookHOOK_FROM_NET, verdict: bpf.NearlbVerdictVERDICT_TRANSLATE_BALANCE, fresh: true,
		xdp: &xdpCourse{world: w, counted: true, leaves: true, tc: true}}, b.objects.FromNet, w.first(w.remote()), true)
	return t.all, t.err
}
