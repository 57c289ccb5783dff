// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/maps"
)

// settingsDir is where the kernel shows the settings of this network namespace. They are read and never changed.
const settingsDir = "/proc/sys/net"

func setting(path ...string) (string, error) {
	text, err := os.ReadFile(filepath.Join(append([]string{settingsDir}, path...)...))
	return strings.TrimSpace(string(text)), err
}

// Forwarding says where the kernel does not forward packets of a family (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding),
// with what follows; nil where it does. Devices, if any are named, are asked one by one.
func Forwarding(v4 bool, devices ...string) error {
	family, name, path := "ipv6", "net.ipv6.conf.all.forwarding", []string{"ipv6", "conf", "all", "forwarding"}
	if v4 {
		family, name, path = "ipv4", "net.ipv4.ip_forward", []string{"ipv4", "ip_forward"}
	}
	const follows = "clients off the node reach no backend on another node or in a pod"
	value, err := setting(path...)
	switch {
	case err != nil:
		return fmt.Errorf("cannot be read: %w", err)
	case len(devices) == 0 && value == "0":
		return fmt.Errorf("off: %s (sysctl -w %s=1)", follows, name)
	}
	var off []string
	for _, d := range devices {
		if value, err := setting(family, "conf", d, "forwarding"); err == nil && value == "0" {
			off = append(off, d)
		}
	}
	if len(off) > 0 {
		return fmt.Errorf("off on %s: %s over it (sysctl -w %s=1, or net.%s.conf.%s.forwarding=1)", strings.Join(off, ", "), follows, name, family,
			strings.ReplaceAll(off[0], ".", "/")) // so that sysctl(8) takes eth0.100 for one name
	}
	return nil
}

// localPorts are those that Linux gives to the host's own sockets.
func localPorts() (maps.PortRange, error) {
	text, err := setting("ipv4", "ip_local_port_range")
	if err != nil {
		return maps.PortRange{}, fmt.Errorf("cannot be read: %w", err)
	}
	return parsePorts(strings.Join(strings.Fields(text), "-"))
}

// QuietPorts are the longest range of ports from 1024 on outside ip_local_port_range and outside first, SNAT's own; empty if that cannot be
// read.
func QuietPorts(first maps.PortRange) maps.PortRange {
	own, err := localPorts()
	if err != nil {
		return maps.PortRange{}
	}
	return quietPorts(own, first)
}

func quietPorts(taken ...maps.PortRange) (longest maps.PortRange) {
	row := maps.PortRange{}
	for port := 1024; port <= 65535; port++ {
		if slices.ContainsFunc(taken, func(r maps.PortRange) bool { return r.Contains(uint16(port)) }) {
			row = maps.PortRange{}
			continue
		}
		if row.Count() == 0 {
			row.First = uint16(port)
		}
		row.Last = uint16(port)
		if row.Count() > longest.Count() {
			longest = row
		}
	}
	return longest
}

// PortOverlap says which of the ports Linux gives to connections of the host's own sockets (net.ipv4.ip_local_port_range less
// ip_local_reserved_ports); nil when none.
func PortOverlap(ports maps.PortRange) error {
	own, err := localPorts()
	if err != nil {
		return err
	}
	text, err := setting("ipv4", "ip_local_reserved_ports")
	if err != nil {
		return fmt.Errorf("cannot be read: %w", err)
	}
	var reserved []maps.PortRange
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		r, err := parsePorts(part)
		if err != nil {
			return err
		}
		reserved = append(reserved, r)
	}
	return overlap(ports, own, reserved)
}

func overlap(ports, own maps.PortRange, reserved []maps.PortRange) error {
	if ports.Count() == 0 {
		return nil
	}
	for port := int(ports.First); port <= int(ports.Last); port++ {
		isReserved := slices.ContainsFunc(reserved, func(r maps.PortRange) bool { return r.Contains(uint16(port)) })
		if own.Contains(uint16(port)) && !isReserved {
			return fmt.Errorf("--snat-ports %s has ports of the host's own connections (net.ipv4.ip_local_port_range %s), whose packets may be taken for "+
				"replies of backends: choose others, or reserve them (sysctl -w net.ipv4.ip_local_reserved_ports=%s)", ports, own, ports)
		}
	}
	return nil
}

// parsePorts reads "61000-65535", or one port.
func parsePorts(text string) (r maps.PortRange, err error) {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	from, err1 := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	to, err2 := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
	r = maps.PortRange{First: uint16(from), Last: uint16(to)}
	if errors.Join(err1, err2) != nil || r.Count() == 0 {
		return r, fmt.Errorf("%q: want FIRST-LAST, as 61000-65535", text)
	}
	return r, nil
}

// ParseSNATPorts reads the value of --snat-ports.
func ParseSNATPorts(text string) (maps.PortRange, error) {
	if !strings.Contains(text, "-") {
		return maps.PortRange{}, fmt.Errorf("%q: want FIRST-LAST, as 61000-65535", text)
	}
	return parsePorts(text)
}

// lookAtHost notes what on this host keeps clients from being served, and logs what is news.
func (r *running) lookAtHost() {
	network, node := r.lastNetwork(), r.daemon.source.Node()
	devices := []string{}
	for _, d := range network.Devices {
		devices = append(devices, d.Name)
	}
	has := func(v4 bool) bool {
		return slices.ContainsFunc(network.Local, func(a netip.Addr) bool { return a.Is4() == v4 })
	}
	findings := map[string]error{"IPv4 forwarding": nil, "IPv6 forwarding": nil, "source ports": PortOverlap(r.daemon.options.SNATPorts), "node addresses": nil,
		"source ports beyond --snat-ports": nil}
	if unknown := r.objects.Conntrack(); r.daemon.options.SNATAllPorts && unknown != nil {
		findings["source ports beyond --snat-ports"] = fmt.Errorf("not used, as it cannot be asked whose they are: %w", unknown)
	}
	if len(devices) > 0 && has(true) {
		findings["IPv4 forwarding"] = Forwarding(true, devices...)
	}
	if len(devices) > 0 && has(false) {
		findings["IPv6 forwarding"] = Forwarding(false, devices...)
	}
	if closed(r.listed) && len(node.Addresses) == 0 {
		findings["node addresses"] = fmt.Errorf("none is known of node %s: there is no such Node, or it has none, and no --node-ip; "+
			"NodePorts answer on this host's own addresses", node.Name)
	}
	for what, err := range findings {
		if r.trouble(what, err) {
			r.daemon.log.Warn("look at the host", "subject", what, "problem", err)
		}
	}
}

// hostEvery is how often the host's settings are read that the kernel tells no news of: which ports its own connections have.
const hostEvery = 30 * time.Second

// followHost looks at the host whenever the kernel says that it forwards otherwise (netconf), or its addresses changed, and every
// hostEvery.
func (r *running) followHost(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF); err != nil {
		r.daemon.log.Warn("follow the host's settings by news: they are read now and then", "error", err)
	} else {
		group.Go(func() error { hear(socket, r.hostChanged); return nil })
		group.Go(func() error { <-ctx.Done(); socket.Close(); return nil })
	}
	ticker := time.NewTicker(hostEvery)
	defer ticker.Stop()
	for {
		r.lookAtHost()
		select {
		case <-ctx.Done():
			return group.Wait()
		case <-r.hostNews:
		case <-ticker.C:
		}
	}
}

// hostChanged has followHost look at the host again.
func (r *running) hostChanged() {
	select {
	case r.hostNews <- struct{}{}:
	default:
	}
}

// hear calls tell for each message, until the socket is closed or broken. The loss of messages counts as one.
func hear(socket *nl.NetlinkSocket, tell func()) {
	for {
		_, _, err := socket.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return
		}
		tell()
	}
}
