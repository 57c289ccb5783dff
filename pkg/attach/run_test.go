// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// during sends packets from the pod as long as f runs, and tells how many arrived.
func (n *node) during(pod *os.File, f func()) uint64 {
	n.Helper()
	sent := uint64(0)
	meanwhile(f, func(over *atomic.Bool) {
		other := n.thread()
		for last := false; !last; {
			last = over.Load()
			sent += other.sendFrom(pod, 10)
		}
	})
	return sent
}

// meanwhile runs work beside f, until it sees that f is over, and waits for it, whichever of them fails.
func meanwhile(f func(), work func(over *atomic.Bool)) {
	var over atomic.Bool
	var worker sync.WaitGroup
	worker.Go(func() { work(&over) })
	defer worker.Wait()
	defer over.Store(true)
	f()
}

// thread puts the calling goroutine's thread into the node's namespace, for good.
func (n *node) thread() *node {
	runtime.LockOSThread()
	other := *n
	if err := netns.Set(netns.NsHandle(n.own.Fd())); err != nil {
		n.Error(err)
	}
	return &other
}

// follow runs a Manager until the test ends.
func (n *node) follow(change func(*Options)) (m *Manager, synced <-chan struct{}) {
	n.Helper()
	news := make(chan struct{}, 1)
	m = n.manager(func(o *Options) {
		change(o)
		o.Synced = func() {
			select {
			case news <- struct{}{}:
			default:
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		n.thread()
		ended <- m.Run(ctx)
	}()
	n.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			n.Errorf("run: %v", err)
		}
	})
	return m, news
}

// await waits until the manager shows what is wanted.
func (n *node) await(m *Manager, synced <-chan struct{}, want ...string) []DeviceRow {
	n.Helper()
	limit := time.After(time.Minute)
	for {
		rows := m.Devices()
		if fmt.Sprint(shown(rows)) == fmt.Sprint(want) {
			return rows
		}
		select {
		case <-synced:
		case <-limit:
			n.Fatalf("the manager shows %v, want %v", shown(rows), want)
		}
	}
}

func TestDevicesAreFollowedAsPodsComeAreRenamedAndGo(t *testing.T) {
	methods(t, func(n *node, force Method) {
		m, synced := n.follow(func(o *Options) { o.Force = force })
		n.await(m, synced)
		n.pod("tmp1", 0)
		from, to := " from_pod "+string(force), " to_pod "+string(force)
		before := n.await(m, synced, "tmp1"+from, "tmp1"+to)
		n.must(netlink.LinkSetDown(n.link("tmp1")))
		n.must(netlink.LinkSetName(n.link("tmp1"), "pod1"))
		after := n.await(m, synced, "pod1"+from, "pod1"+to)
		if before[0].Link != after[0].Link || before[0].ID != after[0].ID {
			t.Errorf("a new name made another link: %v, %v", before, after)
		}
		n.pod("pod2", 0)
		n.await(m, synced, "pod1"+from, "pod1"+to, "pod2"+from, "pod2"+to)
		n.must(netlink.LinkDel(n.link("pod1")))
		n.await(m, synced, "pod2"+from, "pod2"+to)
	})
}

// A CNI that makes its clsact qdisc anew takes all filters with it; one may remove filters that it does not know.
func TestFiltersThatSomebodyTookAwayComeBackByTheKernelsNews(t *testing.T) {
	inNode(t, func(n *node) {
		m, synced := n.follow(func(o *Options) { o.Force = Clsact })
		pod := n.pod("pod1", 0)
		want := []string{"pod1 from_pod clsact", "pod1 to_pod clsact"}
		n.await(m, synced, want...)
		h, err := openNetlink()
		n.must(err)
		defer h.Close()
		index := n.link("pod1").Attrs().Index
		back := func(what string) {
			n.Helper()
			n.back(pod, synced, what, func() bool {
				return !slices.ContainsFunc(places(), func(hook hook) bool {
					filter, err := findFilter(h, index, hook)
					return err != nil || filter == nil
				})
			})
		}
		n.must(h.QdiscDel(clsact(index)))
		back("the qdisc was removed")
		n.must(h.QdiscDel(clsact(index)))
		n.must(h.QdiscAdd(clsact(index)))
		back("the qdisc was made anew")
		for _, hook := range places() {
			filter, err := findFilter(h, index, hook)
			n.must(err)
			n.must(h.FilterDel(filter))
		}
		back("the filters were removed")
	})
}

func TestADefaultRouteMakesAPodsDeviceANetworkDevice(t *testing.T) {
	inNode(t, func(n *node) {
		m, synced := n.follow(func(*Options) {})
		n.pod("veth1", 0)
		n.await(m, synced, n.podDoors("veth1")...)
		route := &netlink.Route{LinkIndex: n.link("veth1").Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
		n.must(netlink.RouteAdd(route))
		n.await(m, synced, n.doors("veth1")...)
		n.must(netlink.RouteDel(route))
		n.await(m, synced, n.podDoors("veth1")...)
	})
}

func TestLostNewsIsNews(t *testing.T) {
	inNode(t, func(n *node) {
		news, err := listen()
		n.must(err)
		defer news.close()
		n.must(news.socket.SetReceiveBufferSize(1, true)) // the kernel's least
		for i := range 200 {
			n.address("lo", fmt.Sprintf("10.1.1.%d/32", i+1))
		}
		ctx, cancel := context.WithCancel(context.Background())
		lost := make(chan error, 1)
		go func() {
			_, _, err := news.socket.Receive()
			for ; err == nil; _, _, err = news.socket.Receive() {
			}
			lost <- err
		}()
		n.Logf("the kernel says: %v", <-lost)
		told := make(chan struct{}, 1000)
		ended := make(chan error, 1)
		n.address("lo", "10.1.2.1/32")
		go func() { ended <- news.read(ctx, func(change) { told <- struct{}{} }, func(filterNews) {}) }()
		<-told
		cancel()
		news.close()
		n.must(<-ended)
	})
}

// Who removes a link's file is told of to nobody, so that it shows which devices were looked at.
func TestNewsHasOnlyThoseDevicesLookedAtThatItIsAbout(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("pod1", 0)
		m := n.manager(nil)
		n.must(m.Sync())
		all := n.pinned()
		unpin := func() {
			for _, name := range all {
				n.must(os.Remove(n.linkDir + "/" + name))
			}
		}
		unpin()
		n.pod("pod2", 0)
		c := change{}
		c.device(n.link("pod2").Attrs().Index)
		n.must(m.sync(c))
		want := append(n.podDoors("pod1"), n.podDoors("pod2")...)
		if got := shown(m.Devices()); !slices.Equal(got, want) {
			t.Errorf("pod2 came: the manager shows %v, want %v", got, want)
		}
		if slices.ContainsFunc(all, func(name string) bool { return slices.Contains(n.pinned(), name) }) {
			t.Error("pod2 came, and pod1 was looked at")
		}
		c = change{}
		c.device(n.link("pod1").Attrs().Index)
		n.must(m.sync(c))
		if got := n.pinned(); len(got) != 2*len(all) {
			t.Errorf("something happened to pod1: %v are pinned, want links of two devices", got)
		}
		unpin()
		n.must(m.Sync())
		if got := n.pinned(); len(got) != 2*len(all) {
			t.Errorf("a look at everything: %v are pinned, want links of two devices", got)
		}
	})
}

// The kernel tells of the end that goes to another namespace, or comes back, and not of the end that stays.
func TestTheOtherEndOfAPairThatMovesIsReadAgain(t *testing.T) {
	inNode(t, func(n *node) {
		pod := n.pod("other", 0)
		n.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "stays"}, PeerName: "moves"}))
		m := n.manager(nil)
		n.must(m.Sync())
		c := change{}
		c.device(n.link("moves").Attrs().Index)
		n.must(netlink.LinkSetNsFd(n.link("moves"), int(pod.Fd())))
		n.must(m.sync(c))
		want := append(n.podDoors("other"), n.podDoors("stays")...)
		if got := shown(m.Devices()); !slices.Equal(got, want) {
			t.Errorf("one end went to a pod: the manager shows %v, want %v", got, want)
		}
		n.enter(pod)
		n.must(netlink.LinkSetNsFd(n.link("moves"), int(n.own.Fd())))
		n.enter(n.own)
		c = change{}
		c.device(n.link("moves").Attrs().Index)
		n.must(m.sync(c))
		if got, want := shown(m.Devices()), n.podDoors("other"); !slices.Equal(got, want) {
			t.Errorf("it came back: the manager shows %v, want %v", got, want)
		}
	})
}

// A route of a device that goes down goes without a word of the kernel's.
func TestTheRoutesOfADeviceThatGoesDownAreReadAgain(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("veth1", 0)
		n.must(netlink.RouteAdd(&netlink.Route{LinkIndex: n.link("veth1").Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
		m := n.manager(nil)
		n.must(m.Sync())
		n.must(netlink.LinkSetDown(n.link("veth1")))
		c := change{}
		c.device(n.link("veth1").Attrs().Index)
		n.must(m.sync(c))
		if m.view.routed[n.link("veth1").Attrs().Index] {
			t.Error("a default route is known that is gone")
		}
	})
}

// So do the routes of a device whose last address goes; the kernel tells of the address.
func TestTheRoutesOfADeviceWithoutAddressesAreReadAgain(t *testing.T) {
	inNode(t, func(n *node) {
		n.pod("veth1", 0)
		n.address("veth1", "10.1.3.1/24")
		n.must(netlink.RouteAdd(&netlink.Route{LinkIndex: n.link("veth1").Attrs().Index, Scope: netlink.SCOPE_LINK,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}))
		m := n.manager(nil)
		n.must(m.Sync())
		if !m.view.routed[n.link("veth1").Attrs().Index] {
			t.Fatal("the default route is not known")
		}
		news, err := listen()
		n.must(err)
		defer news.close()
		addresses, err := netlink.AddrList(n.link("veth1"), netlink.FAMILY_V4)
		n.must(err)
		n.must(netlink.AddrDel(n.link("veth1"), &addresses[0]))
		for told := false; !told; {
			messages, _, err := news.socket.Receive()
			n.must(err)
			for _, message := range messages {
				told = told || message.Header.Type == unix.RTM_DELADDR
				if c, matters := changeOf(message.Header.Type, message.Data); matters {
					n.must(m.sync(c))
				}
			}
		}
		if m.view.routed[n.link("veth1").Attrs().Index] {
			t.Error("a default route is known that is gone")
		}
	})
}
