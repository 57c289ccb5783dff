// SPDX-License-Identifier: Apache-2.0

// Package lab builds a small cluster out of network namespaces: nodes with an uplink to one router, pods on
// point-to-point veths or on a bridge, real servers and clients in them, real agents as processes of the nodes.
//
// A lab touches nothing of the machine's own network. Its namespaces have no name and its mounts are in a mount namespace
// of their own, so that both are gone with the process, whatever way it ends; its processes die with it. What a killed
// run can leave is an empty temporary directory, which the next run removes.
package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Options of a lab. The zero value is a lab with the defaults.
type Options struct {
	MTU       int // of every link unless its node says otherwise; 0 is 1500
	Network   Network
	Unrouted  bool // nothing knows the nodes' pods, whatever the network: what runs on the nodes sees to that
	Netfilter bool // nodes have the nftables rules that CNIs and kube-proxy install
	XDP       bool // links of hosts give packets complete checksums, which programs at XDP want, and take what these send
}

// Lab is one cluster. Its methods may be called from several goroutines unless they say otherwise.
type Lab struct {
	Dir       string // private temporary directory
	Manifests *Manifests
	Router    *Namespace // joins the nodes

	options Options
	lock    *os.File
	mounts  *mounts
	cgroups cgroups

	mu        sync.Mutex
	nodes     []*Node
	numbers   int // of nodes that there were: none is given twice
	outside   []*Outside
	processes []*Process
	closed    bool
}

// New makes an empty lab: a router, a directory for manifests, a mount namespace with a BPF file system.
// It needs root. What it made is taken back when it fails.
func New(options Options) (*Lab, error) {
	if options.MTU == 0 {
		options.MTU = 1500
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("build lab: network namespaces need root")
	}
	removeStale(os.TempDir())
	l := &Lab{options: options}
	if err := l.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("build lab: %w", err), l.Close())
	}
	return l, nil
}

func (l *Lab) build() (err error) {
	if l.Dir, l.lock, err = makeDir(os.TempDir()); err != nil {
		return err
	}
	for _, sub := range []string{"bpf", "lock", "log", "manifests", "parts"} {
		if err := os.Mkdir(filepath.Join(l.Dir, sub), 0o755); err != nil {
			return err
		}
	}
	l.Manifests = &Manifests{Dir: filepath.Join(l.Dir, "manifests"), parts: filepath.Join(l.Dir, "parts")}
	if l.mounts, err = newMounts(l.BPFDir()); err != nil {
		return err
	}
	if l.cgroups, err = newCgroups(l.Dir); err != nil {
		return err
	}
	if l.Router, err = newNamespace("router"); err != nil {
		return err
	}
	if err := l.Router.connectNothingElse(); err != nil {
		return err
	}
	if l.options.Network == Shared {
		return l.addSegment()
	}
	return nil
}

// connectNothingElse makes a router of the namespace that refuses at once what is for none of its nodes, so that nobody
// waits for the answer to a packet that was not translated.
func (ns *Namespace) connectNothingElse() error {
	if err := ns.forward(); err != nil {
		return err
	}
	for _, a := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if err := ns.link.RouteAdd(&netlink.Route{Dst: ipNet(everything(a)), Type: unix.RTN_PROHIBIT}); err != nil {
			return fmt.Errorf("refuse what is for no node: %w", err)
		}
	}
	return nil
}

// BPFDir is the mount point of the lab's BPF file system. It is empty when looked at from outside the lab's mount
// namespace: see Mounted.
func (l *Lab) BPFDir() string { return filepath.Join(l.Dir, "bpf") }

// LockDir is the directory for the agents' lock files.
func (l *Lab) LockDir() string { return filepath.Join(l.Dir, "lock") }

// Mounted calls f on a thread of its own inside the lab's mount namespace, where BPFDir has contents.
// File descriptors opened there work everywhere.
func (l *Lab) Mounted(f func() error) error { return l.mounts.do(f) }

// Nodes are the nodes in the order they were added.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*Node(nil), l.nodes...)
}

// RemoveNode ends a node: its processes and those of its pods, their namespaces, and so the router's device and routes that led there.
// Other nodes on its segment, or in tunnels with it, keep their routes to its pods.
func (l *Lab) RemoveNode(n *Node) error {
	on := map[*Namespace]bool{n.Namespace: true}
	for _, p := range n.Pods() {
		on[p.Namespace] = true
	}
	l.mu.Lock()
	l.nodes = slices.DeleteFunc(l.nodes, func(o *Node) bool { return o == n })
	var ended []*Process
	l.processes = slices.DeleteFunc(l.processes, func(p *Process) bool {
		if on[p.on] {
			ended = append(ended, p)
		}
		return on[p.on]
	})
	l.mu.Unlock()
	var errs []error
	for _, p := range ended {
		errs = append(errs, p.Kill())
	}
	return errors.Join(append(errs, n.close())...)
}

// Close ends the lab's processes, servers and namespaces and removes its directory. It may be called again.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	processes, nodes, outside := l.processes, l.nodes, l.outside
	l.mu.Unlock()

	var errs []error
	for _, p := range processes {
		errs = append(errs, p.Kill())
	}
	for _, n := range nodes {
		errs = append(errs, n.close())
	}
	for _, o := range outside {
		errs = append(errs, o.close())
	}
	errs = append(errs, l.Router.close(), l.mounts.close())
	if l.Dir != "" {
		errs = append(errs, os.RemoveAll(l.Dir), l.lock.Close())
	}
	return errors.Join(errs...)
}
