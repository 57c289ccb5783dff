// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pair is how a server sees a connection.
type Pair struct {
	Protocol uint8 // IANA number
	Source   netip.AddrPort
	Server   netip.AddrPort
}

// reservedSeconds is how long a pair is kept: by then most connections have ended.
const reservedSeconds = 3600

// tcpEstablished is a state in which NAT takes no port away from an entry (nf_nat_used_tuple_harder).
const tcpEstablished = 3

// Reserve keeps the kernel's NAT from giving a new connection the source address and port that another connection, which it does not
// see, has towards the same server: it enters them in connection tracking, where NAT looks. It translates no packet by that. It takes at most
// half of the room that there is, and gives the number of pairs that NAT keeps off: all where the kernel has no connection tracking.
func Reserve(pairs []Pair) (kept int, err error) {
	room, err := freeEntries()
	if errors.Is(err, fs.ErrNotExist) {
		return len(pairs), nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the size of connection tracking: %w", err)
	}
	for _, p := range pairs[:min(len(pairs), room/2)] {
		switch err := reserve(p); {
		case err == nil, errors.Is(err, unix.EEXIST): // it was reserved before
			kept++
		default:
			return kept, fmt.Errorf("enter %s to %s in connection tracking: %w", p.Source, p.Server, err)
		}
	}
	return kept, nil
}

func reserve(p Pair) error {
	family := netlink.InetFamily(unix.AF_INET)
	if p.Source.Addr().Is6() {
		family = unix.AF_INET6
	}
	flow := &netlink.ConntrackFlow{FamilyType: uint8(family), Forward: tuple(p.Protocol, p.Source, p.Server), Reverse: tuple(p.Protocol, p.Server, p.Source), TimeOut: reservedSeconds}
	if p.Protocol == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: tcpEstablished}
	}
	return netlink.ConntrackCreate(netlink.ConntrackTable, family, flow)
}

func tuple(protocol uint8, from, to netip.AddrPort) netlink.IPTuple {
	return netlink.IPTuple{Protocol: protocol, SrcIP: from.Addr().AsSlice(), SrcPort: from.Port(), DstIP: to.Addr().AsSlice(), DstPort: to.Port()}
}

// freeEntries is the room in connection tracking.
func freeEntries() (int, error) {
	most, err := number("nf_conntrack_max")
	if err != nil {
		return 0, err
	}
	count, err := number("nf_conntrack_count")
	return max(0, most-count), err
}

func number(name string) (int, error) {
	text, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}
