// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

// known are the ways of attaching that this kernel has; the first is the one that is taken without being asked for.
func known(t *testing.T) []Method {
	t.Helper()
	if privileged.TCX(t) {
		return []Method{TCX, Clsact}
	}
	return []Method{Clsact}
}

// methods runs a test for every way of attaching.
func methods(t *testing.T, test func(n *node, force Method)) {
	for _, method := range known(t) {
		t.Run(string(method), func(t *testing.T) { inNode(t, func(n *node) { test(n, method) }) })
	}
}

func TestProgramsAreOnPodAndNetworkDevicesAndNowhereElse(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.pod("pod1", 0)
		n.pod("pod2", 0)
		n.pod("gateway", 0) // a pod's device with an address that is not the node's
		n.pod("uplink", 0)
		n.pod("node", 0)
		n.address("gateway", "10.244.0.1/32")
		n.address("uplink", "198.51.100.2/24")
		n.address("node", "192.0.2.1/24")
		n.must(netlink.RouteAdd(&netlink.Route{LinkIndex: n.link("uplink").Attrs().Index, Gw: netip.MustParseAddr("198.51.100.1").AsSlice()}))
		n.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "inner"}, PeerName: "inner2"}))
		m := n.manager(func(o *Options) {
			o.Force = force
			o.NodeAddresses = func() []netip.Addr { return []netip.Addr{netip.MustParseAddr("192.0.2.1")} }
		})
		n.must(m.Sync())
		var want []string
		for _, device := range []string{"gateway pod", "node net", "pod1 pod", "pod2 pod", "uplink net"} {
			name, kind, _ := strings.Cut(device, " ")
			want = append(want, name+" from_"+kind+" "+string(force), name+" to_"+kind+" "+string(force))
		}
		if diff := cmp.Diff(want, shown(n.rows())); diff != "" {
			t.Errorf("the kernel has other programs than wanted (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(n.rows(), m.Devices()); diff != "" {
			t.Errorf("the manager says otherwise than the kernel (-kernel +manager):\n%s", diff)
		}
	})
}

func TestPatternsNameThePodDevices(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("cali1", 0)
		n.pod("veth1", 0)
		m := n.manager(func(o *Options) { o.Pods = []string{"cali*"} })
		n.must(m.Sync())
		if diff := cmp.Diff(n.podDoors("cali1"), shown(n.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

func TestARestartPutsNewProgramsInPlaceWithoutAGap(t *testing.T) {
	methods(t, func(n *node, force Method) {
		pod := n.pod("pod1", 0)
		force1 := func(o *Options) { o.Force = force }
		first := n.manager(force1)
		n.must(first.Sync())
		before := n.rows()
		n.must(first.Close())
		packets := n.sendFrom(pod, 300) // nobody is there: SIGTERM leaves traffic flowing
		if got := n.settled(packets); got != packets {
			t.Fatalf("%d packets of %d were seen after the manager ended", got, packets)
		}
		n.programs, _ = countingPrograms(n.T, n.counter)
		second := n.manager(force1)
		seen := n.during(pod, func() { n.must(second.Sync()) })
		if got := n.settled(packets + seen); got != packets+seen {
			t.Errorf("%d of %d packets were seen while programs were replaced", got-packets, seen)
		}
		after := n.rows()
		for i := range after {
			if after[i].Link != before[i].Link || after[i].ID == before[i].ID {
				t.Errorf("%s of %s: link %d program %d before, link %d program %d after; want the same link and another program", after[i].Program,
					after[i].Device, before[i].Link, before[i].ID, after[i].Link, after[i].ID)
			}
		}
		if len(after) != 2 {
			t.Errorf("%d programs are attached, want 2", len(after))
		}
	})
}

func TestAnIndexThatGoesToAnotherDeviceIsNotTakenForTheOldOne(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 77)
		first := n.manager(nil)
		n.must(first.Sync())
		old := n.rows()
		n.must(first.Close())
		n.must(netlink.LinkDel(n.link("pod1")))
		pod := n.pod("pod2", 77)
		if got := n.rows(); len(got) != 0 {
			t.Errorf("links of a device that is gone are listed: %v", got)
		}
		n.must(n.manager(nil).Sync())
		if diff := cmp.Diff(n.podDoors("pod2"), shown(n.rows())); diff != "" {
			t.Error(diff)
		}
		if link := n.rows()[0].Link; link != 0 && link == old[0].Link {
			t.Error("the old link is still there")
		}
		sent := n.sendFrom(pod, 5)
		if got := n.settled(sent); got != sent || sent == 0 {
			t.Errorf("%d packets of %d were seen", got, sent)
		}
	})
}

func TestPinsOfVanishedDevicesAreRemoved(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		n.pod("pod2", 0)
		n.must(n.manager(nil).Sync())
		n.must(netlink.LinkDel(n.link("pod1")))
		again := n.manager(nil) // another process
		n.must(again.Sync())
		index := n.link("pod2").Attrs().Index
		want := []string{}
		if known(t)[0] == TCX { // filters are in the device, and have no pins
			want = append(want, fmt.Sprintf("%d_egress", index), fmt.Sprintf("%d_ingress", index))
		}
		if diff := cmp.Diff(want, n.pinned()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestADeviceThatIsNoPodsAnyMoreIsLeft(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.pod("pod1", 0)
		n.pod("pod2", 0)
		m := n.manager(func(o *Options) { o.Force = force })
		n.must(m.Sync())
		n.address("pod1", "192.0.2.7/24") // no node address is known, so any makes it the node's
		n.must(m.Sync())
		want := []string{"pod2 from_pod " + string(force), "pod2 to_pod " + string(force)}
		if diff := cmp.Diff(want, shown(n.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

func TestAChangedMethodLeavesOneProgram(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		for _, force := range slices.Repeat(known(t), 2) {
			m := n.manager(func(o *Options) { o.Force = force })
			n.must(m.Sync())
			n.must(m.Close())
			if diff := cmp.Diff([]string{"pod1 from_pod " + string(force), "pod1 to_pod " + string(force)}, shown(n.rows())); diff != "" {
				t.Error(diff)
			}
			if pins := len(n.pinned()); (pins == 0) != (force == Clsact) {
				t.Errorf("with %s there are %d pins", force, pins)
			}
		}
		_, err := RemoveFilters(n.programIDs(), n.qdiscDir())
		n.must(err)
	})
}

func TestClsactStaysWithoutBeingAskedFor(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		n.must(n.manager(func(o *Options) { o.Force = Clsact }).Sync())
		m := n.manager(nil)
		n.must(m.Sync())
		if diff := cmp.Diff([]string{"pod1 from_pod clsact", "pod1 to_pod clsact"}, shown(n.rows())); diff != "" {
			t.Error(diff)
		}
	})
}

func TestOneFailingDeviceDoesNotKeepTheOthers(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		n.pod("pod2", 0)
		n.must(netlink.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{ // leaves no room for an egress filter
			LinkIndex: n.link("pod1").Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}}))
		m := n.manager(func(o *Options) { o.Force = Clsact })
		if err := m.Sync(); err == nil {
			t.Error("no error")
		}
		rows := m.Devices()
		want := []string{"pod1 from_pod ", "pod1 to_pod ", "pod2 from_pod clsact", "pod2 to_pod clsact"}
		if diff := cmp.Diff(want, shown(rows)); diff != "" {
			t.Error(diff)
		}
		if rows[0].Error == "" || rows[1].Error == "" || rows[2].Error != "" || rows[3].Error != "" {
			t.Errorf("the rows are %v, want errors of pod1 alone", rows)
		}
		n.must(netlink.QdiscDel(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: n.link("pod1").Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0)}}))
		n.must(m.Sync())
	})
}

func TestWithoutTheRepliesProgramTheRequestsIsNotAttached(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.pod("pod1", 0)
		m := n.manager(func(o *Options) {
			o.Force = force
			broken, err := o.Programs.ToPod.Clone()
			n.must(err)
			n.must(broken.Close())
			o.Programs.ToPod = broken
		})
		if err := m.Sync(); err == nil {
			t.Error("no error")
		}
		if rows := n.rows(); len(rows) != 0 {
			t.Errorf("the kernel has %v", rows)
		}
		if rows := m.Devices(); len(rows) != 2 || rows[0].Error == "" || rows[1].Error == "" {
			t.Errorf("the manager says %v, want an error for each program", rows)
		}
	})
}

func TestOursAreOutermostAmongOtherPrograms(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.pod("pod1", 0)
		others, _ := countingPrograms(n.T, nil)
		n.attachOther("pod1", force, others)
		m := n.manager(func(o *Options) { o.Force = force })
		n.must(m.Sync())
		rows := n.rows()
		if diff := cmp.Diff(rows, m.Devices()); diff != "" {
			t.Error(diff)
		}
		from, to := id(n, others.FromPod), id(n, others.ToPod)
		ours := map[string]uint32{rows[0].Program: rows[0].ID, rows[1].Program: rows[1].ID}
		if diff := cmp.Diff([]uint32{ours["from_pod"], from}, n.order("pod1", force, places()[1])); diff != "" {
			t.Errorf("at ingress (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]uint32{to, ours["to_pod"]}, n.order("pod1", force, places()[0])); diff != "" {
			t.Errorf("at egress (-want +got):\n%s", diff)
		}
		if force == TCX {
			if diff := cmp.Diff([][]uint32{{}, {to}}, [][]uint32{rows[0].Others, rows[1].Others}); diff != "" {
				t.Errorf("others before ours (-want +got):\n%s", diff)
			}
		}
	})
}

// TCX programs see a packet before clsact filters, and of both others may be before ours or after.
func TestNeighboursAreThoseInOurPlaces(t *testing.T) {
	methods(t, func(n *node, force Method) {
		n.pod("pod1", 0)
		n.pod("pod2", 0)
		linked, _ := countingPrograms(n.T, nil)
		filtered, _ := countingPrograms(n.T, nil)
		if force == TCX {
			n.attachOther("pod1", TCX, linked)
		}
		n.attachOther("pod1", Clsact, filtered)
		n.attachOther("pod2", Clsact, filtered)
		n.must(n.manager(func(o *Options) {
			o.Force = force
			o.Pods = []string{"pod1"}
		}).Sync())
		want := []Neighbour{
			{egress, Clsact, id(n, filtered.ToPod), "other", force == TCX}, {ingress, Clsact, id(n, filtered.FromPod), "other", true},
		}
		if force == TCX {
			to, from := id(n, linked.ToPod), id(n, linked.FromPod)
			want = []Neighbour{{egress, TCX, to, ProgramName(to), false}, want[0], {ingress, TCX, from, ProgramName(from), true}, want[1]}
		}
		for device, want := range map[string][]Neighbour{"pod1": want, "pod2": nil} {
			got, err := Neighbours(n.linkDir, n.link(device).Attrs().Index)
			n.must(err)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("of %s (-want +got):\n%s", device, diff)
			}
		}
	})
}

// attachOther puts programs that are not ours on a device, by links or as clsact filters.
func (n *node) attachOther(device string, method Method, others Programs) {
	n.Helper()
	index := n.link(device).Attrs().Index
	for _, h := range hooksOf("", others.FromPod, others.ToPod) {
		if method == TCX {
			l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: h.loaded, Attach: h.attach})
			n.must(err)
			n.Cleanup(func() { l.Close() })
			continue
		}
		handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		n.must(err)
		defer handle.Close()
		n.must(ensureClsact(handle, index, ""))
		f := h.filter(index)
		f.Name, f.Handle, f.Priority = "other", 1, 100
		n.must(netlink.FilterAdd(f))
	}
}

// order is the programs in one place of a device, in the order in which they see a packet.
func (n *node) order(device string, method Method, h hook) (ids []uint32) {
	n.Helper()
	if method == TCX {
		q, err := link.QueryPrograms(link.QueryOptions{Target: n.link(device).Attrs().Index, Attach: h.attach})
		n.must(err)
		for _, p := range q.Programs {
			ids = append(ids, uint32(p.ID))
		}
		return ids
	}
	filters, err := netlink.FilterList(n.link(device), h.parent)
	n.must(err)
	slices.SortFunc(filters, func(a, b netlink.Filter) int { return int(a.Attrs().Priority) - int(b.Attrs().Priority) })
	for _, f := range filters {
		ids = append(ids, uint32(f.(*netlink.BpfFilter).Id))
	}
	return ids
}

func TestALinkWhoseFileWasRemovedIsPinnedAgain(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		m := n.manager(nil)
		n.must(m.Sync())
		before := n.rows()
		for _, name := range n.pinned() {
			n.must(unix.Unlink(n.linkDir + "/" + name))
		}
		n.must(m.Sync())
		if diff := cmp.Diff(before, n.rows()); diff != "" {
			t.Errorf("want the same links again (-want +got):\n%s", diff)
		}
	})
}

func TestRemoveFiltersLeavesNothing(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		n.must(n.manager(func(o *Options) { o.Force = Clsact }).Sync())
		cleaned, err := RemoveFilters(n.programIDs(), n.qdiscDir())
		n.must(err)
		if diff := cmp.Diff([]string{"filters of pod1", "clsact of pod1"}, cleaned); diff != "" {
			t.Error(diff)
		}
		qdiscs, err := netlink.QdiscList(n.link("pod1"))
		n.must(err)
		for _, q := range qdiscs {
			if q.Type() == "clsact" {
				t.Error("the clsact qdisc is still there")
			}
		}
	})
}

func TestListWithoutAnythingIsEmpty(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		if rows := n.rows(); len(rows) != 0 {
			t.Errorf("got %v", rows)
		}
		if _, err := pins(n.linkDir); err != nil && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
}

func TestNothingIsAttachedBeforeProgramsAreGiven(t *testing.T) {
	devices, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := NewSocketHooks(SocketOptions{Mode: HostSockets})
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"devices": devices.Sync(), "devices, given none": devices.Give(Programs{}, nil),
		"sockets": sockets.Sync(), "sockets, given none": sockets.Give(nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}
