// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// card makes a device that plays the node's network card: a veth whose other end is in a namespace of its own.
func (n *node) card(name string, prefixes ...string) *os.File {
	n.Helper()
	outside := n.pod(name, 0)
	for _, prefix := range prefixes {
		n.address(name, prefix)
	}
	return outside
}

func (n *node) add(l netlink.Link) {
	n.Helper()
	n.must(netlink.LinkAdd(l))
	n.up(l.Attrs().Name)
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

// tun makes a device without an Ethernet header.
func (n *node) tun(name string) {
	n.Helper()
	n.add(&netlink.Tuntap{LinkAttrs: named(name), Mode: netlink.TUNTAP_MODE_TUN})
	n.address(name, "10.9.0.1/32") // nobody has it open, so that it has no carrier
}

// asNode makes the manager know addresses of the node.
func asNode(addresses ...string) func(*Options) {
	known := []netip.Addr{}
	for _, a := range addresses {
		known = append(known, netip.MustParseAddr(a))
	}
	return func(o *Options) { o.NodeAddresses = func() []netip.Addr { return known } }
}

// doors are what a device has once both programs are there.
func doors(method Method, devices ...string) []string {
	list := []string{}
	for _, d := range devices {
		list = append(list, d+" from_net "+string(method), d+" to_net "+string(method))
	}
	return list
}

// doors are those of network devices with the method that this kernel takes by itself.
func (n *node) doors(devices ...string) []string { return doors(known(n.T)[0], devices...) }

// podDoors are those of a pod's device.
func (n *node) podDoors(device string) []string {
	method := " " + string(known(n.T)[0])
	return []string{device + " from_pod" + method, device + " to_pod" + method}
}

func TestNetworkDevicesOfAllKindsAreFoundByThemselves(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.card("eth0", "192.0.2.1/24", "2001:db8::1/64")
		card := n.link("eth0").Attrs().Index
		made := []string{"eth0", "tun0"}
		over := func(name string) netlink.LinkAttrs {
			a := named(name)
			a.ParentIndex = card
			return a
		}
		here, there := net.IPv4(192, 0, 2, 1), net.IPv4(192, 0, 2, 2)
		for _, l := range []netlink.Link{
			&netlink.Vxlan{LinkAttrs: named("vxlan9"), VxlanId: 42, Port: 8472, VtepDevIndex: card},
			&netlink.Geneve{LinkAttrs: named("geneve9"), ID: 7, Remote: there},
			&netlink.Gretun{LinkAttrs: named("gre9"), Local: here, Remote: there},
			&netlink.Gretap{LinkAttrs: named("gretap9"), Local: here, Remote: there},
			&netlink.Iptun{LinkAttrs: named("ipip9"), Local: here, Remote: there},
			&netlink.Sittun{LinkAttrs: named("sit9"), Local: here, Remote: there},
			&netlink.Wireguard{LinkAttrs: named("wg9")},
			&netlink.Vlan{LinkAttrs: over("vlan9"), VlanId: 100},
			&netlink.Macvlan{LinkAttrs: over("macvlan9"), Mode: netlink.MACVLAN_MODE_BRIDGE},
			netlink.NewLinkBond(named("bond9")), // a zero value would ask for delays that want other settings
		} {
			err := netlink.LinkAdd(l)
			if errors.Is(err, unix.EOPNOTSUPP) {
				t.Logf("left out: this kernel has no %s", l.Type())
				continue
			}
			n.must(err)
			n.up(l.Attrs().Name)
			made = append(made, l.Attrs().Name)
			n.address(l.Attrs().Name, fmt.Sprintf("198.51.100.%d/32", len(made)))
		}
		n.add(&netlink.Bridge{LinkAttrs: named("cni0")})
		n.address("cni0", "10.244.1.1/24")
		n.tun("tun0")
		n.pod("pod1", 0)
		m := n.manager(func(o *Options) { o.Force = force; asNode("192.0.2.1")(o) })
		n.must(m.Sync())
		want := doors(force, made...)
		want = append(want, "pod1 from_pod "+string(force), "pod1 to_pod "+string(force))
		slices.Sort(want)
		if diff := cmp.Diff(want, shown(n.rows())); diff != "" {
			t.Errorf("the kernel has other programs than wanted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(n.rows(), m.Devices()); diff != "" {
			t.Errorf("the manager says otherwise than the kernel (-kernel +manager):\n%s", diff)
		}
		for _, row := range n.rows() {
			if want := map[bool]string{true: "pod", false: "network"}[row.Device == "pod1"]; row.Kind != want {
				t.Errorf("%s is listed as %s, want %s", row.Device, row.Kind, want)
			}
		}
	})
}

func TestDevicesWithoutAnEthernetHeaderGetTheirOwnPrograms(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		n.tun("tun0")
		m := n.manager(asNode("192.0.2.1"))
		n.must(m.Sync())
		from, to, err := n.programs.Layer3()
		n.must(err)
		want := map[string]uint32{"eth0 from_net": id(n, n.programs.FromNet), "eth0 to_net": id(n, n.programs.ToNet),
			"tun0 from_net": id(n, from), "tun0 to_net": id(n, to)}
		got := map[string]uint32{}
		for _, row := range n.rows() {
			got[row.Device+" "+row.Program] = row.ID
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func id(n *node, p *ebpf.Program) uint32 {
	n.Helper()
	info, err := p.Info()
	n.must(err)
	number, _ := info.ID()
	return uint32(number)
}

func TestProgramsThatCannotBeLoadedForOneDeviceDoNotKeepTheOthers(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		n.tun("tun0")
		m := n.manager(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.Programs.Layer3 = func() (*ebpf.Program, *ebpf.Program, error) { return nil, nil, errors.New("no room") }
		})
		if err := m.Sync(); err == nil || err.Error() != "attach to_net to tun0: no room" {
			t.Errorf("error %v", err)
		}
		if diff := cmp.Diff(n.doors("eth0"), shown(n.rows())); diff != "" {
			t.Error(diff)
		}
		if rows := m.Devices(); len(rows) != 4 || rows[2].Error == "" || rows[3].Error == "" {
			t.Errorf("the manager says %v, want an error for each program of tun0", rows)
		}
	})
}

func TestPatternsNameTheNetworkDevices(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		n.card("ens1")
		n.pod("veth1", 0)
		m := n.manager(func(o *Options) { asNode("192.0.2.1")(o); o.Networks = []string{"ens*", "lo"} })
		n.must(m.Sync())
		want := append(n.doors("ens1"), n.podDoors("veth1")...)
		if diff := cmp.Diff(want, shown(n.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

func TestWithoutToNetFromNetIsNotAttached(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.card("eth0", "192.0.2.1/24")
		m := n.manager(func(o *Options) {
			o.Force = force
			asNode("192.0.2.1")(o)
			broken, err := o.Programs.ToNet.Clone()
			n.must(err)
			n.must(broken.Close())
			o.Programs.ToNet = broken
		})
		if err := m.Sync(); err == nil {
			t.Error("no error")
		}
		if rows := n.rows(); len(rows) != 0 {
			t.Errorf("the kernel has %v", rows)
		}
	})
}

func TestARestartPutsNewProgramsOnNetworkDevicesWithoutAGap(t *testing.T) {
	methods(t, func(n *node, force Method) {
		outside := n.card("eth0", "192.0.2.1/24")
		options := func(o *Options) { o.Force = force; asNode("192.0.2.1")(o) }
		first := n.manager(options)
		n.must(first.Sync())
		before := n.rows()
		n.must(first.Close())
		n.programs, _ = countingPrograms(n.T, n.counter)
		second := n.manager(options)
		seen := n.during(outside, func() { n.must(second.Sync()) })
		if got := n.settled(seen); got != seen {
			t.Errorf("%d of %d packets were seen while programs were replaced", got, seen)
		}
		for i, after := range n.rows() {
			if after.Link != before[i].Link || after.ID == before[i].ID {
				t.Errorf("%s: link %d program %d before, link %d program %d after; want the same link and another program", after.Program,
					before[i].Link, before[i].ID, after.Link, after.ID)
			}
		}
	})
}

// An agent that takes over does not know the node's addresses before it has read the Node, which may take as long as the API
// server is away.
func TestARestartBeforeTheNodeIsKnownTakesNothingAway(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.card("eth0", "192.0.2.1/24")
		n.pod("pod1", 0)
		n.address("pod1", "10.244.1.1/24")
		first := n.manager(func(o *Options) { o.Force = force; asNode("192.0.2.1")(o) })
		n.must(first.Sync())
		before := n.rows()
		n.must(first.Close())
		var told Network
		second := n.manager(func(o *Options) { o.Force = force; asNode()(o); o.Network = func(n Network) { told = n } })
		n.must(second.Look())
		for range 2 {
			n.must(second.Sync())
			if diff := cmp.Diff(before, n.rows()); diff != "" || len(before) != 4 {
				t.Errorf("after the restart the kernel has (-before +after):\n%s", diff)
			}
		}
		if len(told.Devices) != 1 || told.Devices[0].Name != "eth0" {
			t.Errorf("told of %v, want eth0", told.Devices)
		}
	})
}

func TestANetworkDeviceIsFollowedAsItIsRenamedFlapsAndGoes(t *testing.T) {
	methods(t, func(n *node, force Method) {
		m, synced := n.follow(func(o *Options) { o.Force = force; asNode("192.0.2.1", "2001:db8::1")(o) })
		n.card("eth0", "192.0.2.1/24")
		before := n.await(m, synced, doors(force, "eth0")...)
		n.must(netlink.LinkSetDown(n.link("eth0")))
		n.must(netlink.LinkSetName(n.link("eth0"), "ens3"))
		n.await(m, synced, doors(force, "ens3")...)
		n.up("ens3")
		n.must(netlink.LinkSetMTU(n.link("ens3"), 1400)) // a last event
		after := n.await(m, synced, doors(force, "ens3")...)
		if before[0].Link != after[0].Link || before[0].ID != after[0].ID {
			t.Errorf("a flap made another link: %v, %v", before, after)
		}
		n.tun("tun0")
		n.await(m, synced, doors(force, "ens3", "tun0")...)
		n.must(netlink.LinkDel(n.link("ens3")))
		n.await(m, synced, doors(force, "tun0")...)
		n.card("eth1", "2001:db8::1/64")
		n.await(m, synced, doors(force, "eth1", "tun0")...)
	})
}

// A device that holds IPv6 alone loses its address and its routes with each flap.
func TestADeviceThatGoesDownKeepsItsPrograms(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "2001:db8::1/64")
		m := n.manager(asNode("2001:db8::1"))
		n.must(m.Sync())
		before := n.rows()
		n.must(netlink.LinkSetDown(n.link("eth0")))
		n.must(m.Sync())
		if diff := cmp.Diff(before, n.rows()); diff != "" || len(before) != 2 {
			t.Errorf("a device that went down has (-before +after):\n%s", diff)
		}
		n.must(m.Close())
		n.must(n.manager(asNode("2001:db8::1")).Sync())
		if diff := cmp.Diff(before, n.rows()); diff != "" {
			t.Errorf("a device that was down as the agent restarted has (-before +after):\n%s", diff)
		}
	})
}

func TestAnAddressThatMovesTakesTheProgramsWithIt(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		n.card("eth1")
		told := make(chan Network, 100)
		m, synced := n.follow(func(o *Options) { asNode("192.0.2.1")(o); o.Network = func(n Network) { told <- n } })
		n.await(m, synced, append(n.doors("eth0"), n.podDoors("eth1")...)...)
		a, err := netlink.ParseAddr("192.0.2.1/24")
		n.must(err)
		n.must(netlink.AddrDel(n.link("eth0"), a))
		n.address("eth1", "192.0.2.1/24")
		n.await(m, synced, append(n.podDoors("eth0"), n.doors("eth1")...)...)
		var last Network
		for len(told) > 0 {
			last = <-told
		}
		node := netip.MustParseAddr("192.0.2.1")
		eth1 := n.link("eth1").Attrs().Index
		want := Network{Devices: []NetworkDevice{{"eth1", eth1, []netip.Addr{node}, []netip.Addr{node}}}, Outside: []int{eth1}, Local: []netip.Addr{node}}
		if fmt.Sprint(last) != fmt.Sprint(want) {
			t.Errorf("told %v, want %v", last, want)
		}
	})
}

func TestTheNetworkIsToldBeforeAnythingIsAttachedAndWhenItDiffers(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24", "192.0.2.9/24")
		n.pod("pod1", 0)
		n.address("pod1", "10.244.1.1/32")
		n.address("lo", "198.51.100.50/32")
		var told []Network
		m := n.manager(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.Network = func(network Network) {
				told = append(told, network)
				if rows := n.rows(); len(told) == 1 && len(rows) > 0 {
					t.Errorf("told after %v", rows)
				}
			}
		})
		n.must(m.Look())
		n.must(m.Sync())
		n.must(m.Sync())
		if len(told) != 1 {
			t.Fatalf("told %d times, want once", len(told))
		}
		eth0 := n.link("eth0").Attrs().Index
		want := fmt.Sprintf("{[{eth0 %d [192.0.2.1 192.0.2.9] [192.0.2.1 192.0.2.9]}] [%d] [10.244.1.1 192.0.2.1 192.0.2.9 198.51.100.50] [] []}", eth0, eth0)
		if got := fmt.Sprint(told[0]); got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		n.address("pod1", "2001:db8:1::1/128")
		n.must(m.Sync())
		if len(told) != 2 || !slices.Contains(told[1].Local, netip.MustParseAddr("2001:db8:1::1")) {
			t.Errorf("told %v, want the new address", told)
		}
	})
}

func TestTunnelsThatAreDownAreLeftAlone(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		n.must(netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: named("vxlan9"), VxlanId: 42, Port: 8472}))
		n.must(n.manager(asNode("192.0.2.1")).Sync())
		if diff := cmp.Diff(n.doors("eth0"), shown(n.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

// What patterns name may be no veth into a pod, but the bridge or tap of one: packets come by it, and cannot be handed past it.
func TestPodDevicesThatLeadIntoNoOtherNamespaceAreToldApart(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		n.add(&netlink.Bridge{LinkAttrs: named("tap1")})
		var told Network
		n.must(n.manager(func(o *Options) {
			o.Pods, o.Peers, o.Network = []string{"pod*", "tap*"}, true, func(network Network) { told = network }
		}).Sync())
		peers, others := []PodDevice{{"pod1", n.link("pod1").Attrs().Index}}, []PodDevice{{"tap1", n.link("tap1").Attrs().Index}}
		if !slices.Equal(told.Peers, peers) || !slices.Equal(told.Others, others) {
			t.Errorf("told of %v and %v, want %v and %v", told.Peers, told.Others, peers, others)
		}
	})
}
