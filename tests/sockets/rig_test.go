// SPDX-License-Identifier: Apache-2.0

// Package sockets tests the programs of the node's own clients by real sockets, in a network namespace and a cgroup of their own.
package sockets

import (
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// rig is a host with the programs attached.
type rig struct {
	testing.TB
	objects *bpf.Objects
	tables  *maps.Tables
	cgroup  string
	calls   chan func()
	served  map[lb.ServiceName]bool
}

// on makes a rig whose sockets are those of mode, and runs the test.
func on(t *testing.T, mode attach.SocketMode, test func(*rig)) {
	privileged.Require(t)
	r := &rig{TB: t, cgroup: privileged.Cgroup(t), served: map[lb.ServiceName]bool{}}
	r.load(mode)
	links, err := attach.NewSocketHooks(attach.SocketOptions{Mode: mode, Cgroup: r.cgroup, Programs: r.objects.NearlbPrograms.ByName()})
	r.must(err)
	r.must(links.Sync())
	t.Cleanup(func() { links.Close() })
	r.calls = host(t, r.cgroup)
	var namespace uint64
	r.do(func() error { namespace, err = bpf.NamespaceCookie(); return err })
	r.must(r.tables.Configure(maps.Config{
		Netns: namespace, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
		Node4: node(false), Node6: node(true), NodePort4: node(false), NodePort6: node(true),
	}))
	test(r)
}

func (r *rig) load(mode attach.SocketMode) {
	// A small table of the LRU kind may forget what is new, when one processor keeps all free entries to itself.
	o := bpf.Options{Sizes: bpf.Sizes{Frontends: 256, Records: 1024, Slots: 65536, Backends: 512, FlowSets: 64, Affinity: 4096, Fragments: 4096,
		SourceRanges: 64, Services: 256, Names: 256}}
	o.Without = ofDevices()
	if mode == attach.AllSockets {
		o.Knobs = map[string]any{"every_namespace": uint8(1)}
	}
	var err error
	r.objects, err = bpf.Load(o)
	r.must(err)
	r.Cleanup(func() { r.objects.Close() })
	r.tables, err = maps.Open(&r.objects.NearlbMaps)
	r.must(err)
	r.Cleanup(func() { r.tables.Close() })
}

// ofDevices are the programs of devices, which sockets do not meet: each takes the verifier's time, which is long on an emulated kernel.
func ofDevices() (names []string) {
	all := reflect.TypeFor[bpf.NearlbPrograms]()
	for i := range all.NumField() {
		if name := all.Field(i).Tag.Get("ebpf"); !strings.HasPrefix(name, "sock_") {
			names = append(names, name)
		}
	}
	return names
}

// host is a thread of its own in a fresh network namespace and in the cgroup, which does what it is given until the test ends.
// All addresses of this package are the namespace's own.
func host(t testing.TB, cgroup string) chan func() {
	t.Helper()
	calls, ready, gone := make(chan func()), make(chan error), make(chan struct{})
	go func() {
		defer close(gone)
		privileged.Namespace(t, func(*os.File) {
			err := addAddresses()
			if err == nil {
				err = privileged.JoinCgroup(cgroup)
			}
			ready <- err
			for call := range calls {
				call()
			}
			if err := privileged.LeaveCgroup(cgroup); err != nil {
				t.Error(err)
			}
		})
	}()
	t.Cleanup(func() { close(calls); <-gone })
	select {
	case err := <-ready:
		if err != nil {
			t.Fatal(err)
		}
	case <-gone:
		t.Fatal("no namespace, no host")
	}
	return calls
}

func addAddresses() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, six := range []bool{false, true} {
		for _, a := range []netip.Addr{node(six), vip(six, 99), backend(six, 1), backend(six, 2), backend(six, 3)} {
			if err := privileged.AddAddress(lo, netlink.NewIPNet(a.AsSlice())); err != nil {
				return err
			}
		}
	}
	return nil
}

// do calls f on the host's thread: sockets that it opens are the host's.
func (r *rig) do(f func() error) {
	r.Helper()
	r.must(call(r.calls, f))
}

func call(calls chan func(), f func() error) error {
	done := make(chan error)
	calls <- func() { done <- f() }
	return <-done
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// in is the same rig for a subtest, with nothing published.
func (r *rig) in(t *testing.T) *rig {
	t.Helper()
	sub := *r
	sub.TB = t
	for name := range r.served {
		_, err := r.tables.Remove(name)
		sub.must(err)
		delete(r.served, name)
	}
	return &sub
}

func (r *rig) publish(d lb.Decision) {
	r.Helper()
	_, err := r.tables.Apply(d)
	r.must(err)
	r.served[d.Service] = true
}

func pick(six bool, v4, v6 string) netip.Addr {
	if six {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

func node(six bool) netip.Addr { return pick(six, "192.0.2.1", "2001:db8::1") }

// vip is the n-th ClusterIP, inside the service CIDR. Number 99 is an address of the host as well.
func vip(six bool, n int) netip.Addr { return number(pick(six, "10.96.0.0", "fd00:96::"), n) }

// backend is the address of the n-th server.
func backend(six bool, n int) netip.Addr { return number(pick(six, "10.1.0.0", "fd00:1::"), n) }

func number(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] = byte(n)
	a, _ = netip.AddrFromSlice(b)
	return a
}
