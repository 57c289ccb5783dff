// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// news is the kernel's stream of changes to devices, addresses, routes and filters of one namespace. A message only says what is to be read
// again: what it says itself may be old by then. Where messages were lost, that is everything.
type news struct {
	socket  *nl.NetlinkSocket
	drivers *nl.NetlinkSocket // of what drivers can do at XDP; nil: nobody asks, or the kernel does not say
}

const newsBuffer = 1 << 20 // bytes

func listen() (*news, error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_TC)
	if err != nil {
		return nil, fmt.Errorf("subscribe to netlink: %w", err)
	}
	if err := socket.SetReceiveBufferSize(newsBuffer, true); err != nil {
		socket.Close()
		return nil, fmt.Errorf("size netlink buffer: %w", err)
	}
	return &news{socket: socket}, nil
}

func (n *news) close() {
	n.socket.Close()
	if n.drivers != nil {
		n.drivers.Close()
	}
}

// read calls changed for what may matter, and filters for filters that were taken away from a device or written in the place of ours, until ctx
// ends.
func (n *news) read(ctx context.Context, changed func(change), filters func(filterNews)) error {
	return receive(ctx, n.socket, changed, func(message syscall.NetlinkMessage) {
		switch kind := message.Header.Type; kind {
		case unix.RTM_DELQDISC, unix.RTM_DELTFILTER:
			if ofClsact(message.Data) {
				filters(filterNews{ifindex: int(nl.DeserializeTcMsg(message.Data).Ifindex)})
			}
		case unix.RTM_NEWTFILTER:
			if f, ours := writtenFilter(message.Data); ours {
				filters(f)
			}
		default:
			if c, matters := changeOf(kind, message.Data); matters {
				changed(c)
			}
		}
	})
}

// filterNews says that filters of a device are gone, or that somebody, perhaps we, wrote one in the place of ours.
type filterNews struct {
	ifindex int
	runs    ebpf.ProgramID // 0: it is gone, or the kernel does not say
}

// writtenFilter is what struct tcmsg and what follows it say of a filter; false if it is in no place of ours.
func writtenFilter(data []byte) (f filterNews, ours bool) {
	if !ofClsact(data) {
		return f, false
	}
	m := nl.DeserializeTcMsg(data)
	if m.Handle != filterHandle || !slices.ContainsFunc(places(), func(h hook) bool {
		return m.Parent == h.parent && uint16(m.Info>>16) == h.priority
	}) {
		return f, false
	}
	f.ifindex = int(m.Ifindex)
	attributes, _ := nl.ParseRouteAttr(data[nl.SizeofTcMsg:])
	for _, a := range attributes {
		if a.Attr.Type == nl.TCA_OPTIONS {
			f.runs = programOf(a.Value)
		}
	}
	return f, true
}

// programOf is the program that a filter's options name; 0: none.
func programOf(options []byte) ebpf.ProgramID {
	attributes, _ := nl.ParseRouteAttr(options)
	for _, a := range attributes {
		if a.Attr.Type == nl.TCA_BPF_ID && len(a.Value) >= 4 {
			return ebpf.ProgramID(binary.NativeEndian.Uint32(a.Value))
		}
	}
	return 0
}

// readDrivers calls changed for each device whose driver can do something else at XDP than before, until ctx ends.
func (n *news) readDrivers(ctx context.Context, changed func(change)) error {
	if n.drivers == nil {
		return nil
	}
	return receive(ctx, n.drivers, changed, func(message syscall.NetlinkMessage) {
		if ifindex, of := driverChanged(message.Data); of {
			var c change
			c.device(ifindex)
			changed(c)
		}
	})
}

// receive calls each for every message of the kernel until ctx ends, and changed where some were lost.
func receive(ctx context.Context, socket *nl.NetlinkSocket, changed func(change), each func(syscall.NetlinkMessage)) error {
	for {
		messages, from, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed(change{all: true})
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return fmt.Errorf("read netlink: %w", err)
		case from.Pid != nl.PidKernel:
		default:
			for _, message := range messages {
				each(message)
			}
		}
	}
}

// changeOf is what is to be read again after a message. It leaves out routes other than default ones, as a routing daemon may change
// thousands of them, link-local addresses, which every device of a pod gets, and what comes at TC.
func changeOf(kind uint16, data []byte) (c change, matters bool) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) < unix.SizeofIfInfomsg {
			return change{all: true}, true
		}
		c.device(int(nl.DeserializeIfInfomsg(data).Index))
		return c, true
	case unix.RTM_NEWADDR:
		return change{addresses: true}, !isLinkLocal(data)
	case unix.RTM_DELADDR: // the routes of a device's last address go without a word
		return change{addresses: true, routes: true}, !isLinkLocal(data)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return change{routes: true}, len(data) >= unix.SizeofRtMsg && nl.DeserializeRtMsg(data).Dst_len == 0
	case unix.RTM_NEWQDISC, unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN,
		unix.RTM_NEWTCLASS, unix.RTM_DELTCLASS, unix.RTM_NEWACTION, unix.RTM_DELACTION:
		return c, false
	}
	return change{all: true}, true
}

// isLinkLocal tells whether struct ifaddrmsg and what follows it are of a link-local address.
func isLinkLocal(data []byte) bool {
	if len(data) < unix.SizeofIfAddrmsg {
		return false
	}
	attributes, err := nl.ParseRouteAttr(data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.IFA_ADDRESS {
			ip, _ := netip.AddrFromSlice(a.Value)
			return ip.IsLinkLocalUnicast()
		}
	}
	return false
}

// ofClsact tells whether struct tcmsg is of a clsact qdisc or of a filter on one.
func ofClsact(data []byte) bool {
	if len(data) < nl.SizeofTcMsg {
		return false
	}
	switch nl.DeserializeTcMsg(data).Parent {
	case netlink.HANDLE_CLSACT, netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS:
		return true
	}
	return false
}
