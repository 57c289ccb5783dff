// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name: it is gone when nothing refers to it any more.
type Namespace struct {
	Name   string // for people
	file   *os.File
	link   *netlink.Handle // acts inside the namespace from any thread
	cgroup membership      // of the threads inside, and so of their sockets
}

// newNamespace makes a namespace with its loopback device up and addresses usable without delay.
func newNamespace(name string) (*Namespace, error) {
	ns := &Namespace{Name: name}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		ns.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err == nil {
		err = ns.prepare()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make %s: %w", name, err), ns.close())
	}
	return ns, nil
}

func (ns *Namespace) prepare() (err error) {
	if ns.link, err = netlink.NewHandleAt(netns.NsHandle(ns.file.Fd()), unix.NETLINK_ROUTE); err != nil {
		return err
	}
	lo, err := ns.link.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := ns.link.LinkSetUp(lo); err != nil {
		return err
	}
	return ns.Sysctl(
		"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0", // no waiting for duplicates
		"ipv6/conf/default/accept_ra=0",
		"ipv4/icmp_ratelimit=0", "ipv6/icmp/ratelimit=0", // every refused packet is answered,
		"ipv4/icmp_ratemask=0", "ipv6/icmp/ratemask=0", // and none counts for the limit that namespaces may share
		"ipv4/ping_group_range=0 0",
		// Strict, as distributions set it, and on every device: nothing here may depend on its being off.
		"ipv4/conf/all/rp_filter=1", "ipv4/conf/default/rp_filter=1",
	)
}

// forward makes a router of the namespace.
func (ns *Namespace) forward() error {
	return ns.Sysctl("ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1")
}

// Sysctl sets values below /proc/sys/net, each written as "path=value".
func (ns *Namespace) Sysctl(settings ...string) error {
	return ns.Do(func() error {
		for _, s := range settings {
			if err := writeSysctl(s); err != nil {
				return err
			}
		}
		return nil
	})
}

// Do calls f on a thread inside the namespace, and of a node or its pods inside the node's cgroup. Sockets that f makes stay
// there and work from any thread. f may start no goroutine that relies on the namespace.
func (ns *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	if onFirstThread() {
		defer runtime.UnlockOSThread()
		return onThread(func() error { return ns.Do(f) })
	}
	origin, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer origin.Close()
	defer func() {
		if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil && ns.cgroup.leave() == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}()
	if err := ns.enter(); err != nil {
		return err
	}
	return f()
}

// enter moves the calling thread, which must be locked.
func (ns *Namespace) enter() error {
	if err := unix.Setns(int(ns.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace of %s: %w", ns.Name, err)
	}
	return ns.cgroup.enter()
}

// Path names the namespace for other processes (nsenter --net=PATH) as long as this one lives.
func (ns *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.file.Fd()) }

// Link is the netlink handle that acts inside the namespace.
func (ns *Namespace) Link() *netlink.Handle { return ns.link }

func (ns *Namespace) close() error {
	if ns == nil {
		return nil
	}
	if ns.link != nil {
		ns.link.Close()
	}
	if ns.file == nil {
		return nil
	}
	return ns.file.Close()
}
