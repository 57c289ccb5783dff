// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Connection is one that the kernel's NAT sends to another server than the client names.
type Connection struct {
	Protocol uint8 // IANA number
	Client   netip.AddrPort
	Frontend netip.AddrPort // that the client names
	Server   netip.AddrPort // that answers
}

// States of TCP in connection tracking (include/uapi/linux/netfilter/nf_conntrack_tcp.h): those between have not ended.
const (
	tcpNone     = 0
	tcpTimeWait = 7
)

// Connections lists those that connection tracking has, of all zones, but for TCP's that have ended. A kernel without it has none.
func Connections() (all []Connection, err error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if noNetfilter(err) {
			continue
		}
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, fmt.Errorf("read connection tracking: %w", err)
		}
		for _, f := range flows {
			if c := connection(f); c.Server != c.Frontend && !ended(f) {
				all = append(all, c)
			}
		}
	}
	return all, nil
}

func connection(f *netlink.ConntrackFlow) Connection {
	return Connection{Protocol: f.Forward.Protocol, Client: addrPort(f.Forward.SrcIP, f.Forward.SrcPort),
		Frontend: addrPort(f.Forward.DstIP, f.Forward.DstPort), Server: addrPort(f.Reverse.SrcIP, f.Reverse.SrcPort)}
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}

func ended(f *netlink.ConntrackFlow) bool {
	tcp, ok := f.ProtoInfo.(*netlink.ProtoInfoTCP)
	return ok && (tcp.State == tcpNone || tcp.State >= tcpTimeWait)
}
