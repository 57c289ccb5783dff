// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// news is the kernel's stream of changes to devices, addresses, routes and filters of one namespace. What changed is not kept: Sync
// looks at everything, so that a lost message costs nothing but the look.
type news struct{ socket *nl.NetlinkSocket }

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
	return &news{socket}, nil
}

func (n *news) close() { n.socket.Close() }

// read calls changed for all that may matter, and removed where filters were taken away, until ctx ends.
func (n *news) read(ctx context.Context, changed, removed func()) error {
	for {
		messages, from, err := n.socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			changed() // some were lost
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil:
			return fmt.Errorf("read netlink: %w", err)
		case from.Pid != nl.PidKernel:
		default:
			for _, message := range messages {
				switch kind := message.Header.Type; {
				case kind == unix.RTM_DELQDISC || kind == unix.RTM_DELTFILTER:
					if ofClsact(message.Data) {
						removed()
					}
				case matters(kind, message.Data):
					changed()
				}
			}
		}
	}
}

// matters leaves out routes other than default ones: a routing daemon may change thousands of them.
func matters(kind uint16, data []byte) bool {
	switch kind {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(data) >= unix.SizeofRtMsg && nl.DeserializeRtMsg(data).Dst_len == 0
	case unix.RTM_NEWQDISC, unix.RTM_NEWTFILTER, unix.RTM_NEWCHAIN, unix.RTM_DELCHAIN: // our own among them
		return false
	}
	return true
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
