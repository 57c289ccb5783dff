// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// News tells that Look may find something else. The kernel says so of nftables, TC filters and queues, routing rules, settings of
// devices and IPsec; nobody says so of iptables-legacy, functions at netfilter's hooks, TCX programs and connection
// tracking.
type News struct {
	C       chan struct{} // gets something when there is news
	sockets []*nl.NetlinkSocket
}

// Listen begins to gather news: what Look reads after it is as new or newer. The caller closes it.
func Listen() (*News, error) {
	n := &News{C: make(chan struct{}, 1)}
	for _, of := range []struct {
		protocol int
		groups   []uint
	}{
		{unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}},
		{unix.NETLINK_ROUTE, []uint{unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_IPV4_NETCONF}},
		{unix.NETLINK_XFRM, []uint{nl.XFRMNLGRP_POLICY}},
	} {
		socket, err := nl.Subscribe(of.protocol, of.groups...)
		if unsupported(err) {
			continue
		}
		if err != nil {
			n.Close()
			return nil, fmt.Errorf("subscribe to netlink %d: %w", of.protocol, err)
		}
		n.sockets = append(n.sockets, socket)
		go n.hear(socket)
	}
	return n, nil
}

// Close ends the news.
func (n *News) Close() {
	for _, s := range n.sockets {
		s.Close()
	}
}

// Tell is news by word of mouth.
func (n *News) Tell() {
	select {
	case n.C <- struct{}{}:
	default:
	}
}

// hear tells of each message until the socket is closed or broken. The loss of messages counts as one.
func (n *News) hear(socket *nl.NetlinkSocket) {
	for {
		_, _, err := socket.Receive()
		if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			return
		}
		n.Tell()
	}
}
