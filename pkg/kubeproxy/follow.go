// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// pollEvery is how often traces are compared.
const pollEvery = 5 * time.Second

// News tells when what Look reads may be another. The kernel says so of nftables, and of iptables that nftables keeps. Nobody says
// so of iptables-legacy and of the device of IPVS: their traces, which cost a few microseconds, are compared every pollEvery.
type News struct {
	socket *nl.NetlinkSocket // nil: the kernel has no nftables
	traces []byte
	every  time.Duration // pollEvery
}

// Listen begins to gather news: what Look reads after it is as new or newer. The caller closes it.
func Listen() (*News, error) {
	n := &News{traces: traces(), every: pollEvery}
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if noNetfilter(err) {
		return n, nil
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables: %w", err)
	}
	n.socket = socket
	return n, nil
}

// Close ends the news, and a Wait that goes on. It may be called from any goroutine.
func (n *News) Close() {
	if n.socket != nil {
		n.socket.Close()
	}
}

// Wait returns when there is news, or ctx ends. To hear more, close and listen again: kube-proxy writes thousands of rules at
// once, and the kernel sends each of them to whoever listens.
func (n *News) Wait(ctx context.Context) error {
	heard := make(chan error, 1)
	if n.socket != nil {
		go func() { heard <- n.hear() }()
	}
	poll := time.NewTicker(n.every)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-heard:
			return err
		case <-poll.C:
			if !bytes.Equal(n.traces, traces()) {
				return nil
			}
		}
	}
}

// hear waits for the first message.
func (n *News) hear() error {
	for {
		_, _, err := n.socket.Receive()
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case errors.Is(err, unix.ENOBUFS): // there were too many
			return nil
		case err != nil:
			return fmt.Errorf("read news of nftables: %w", err)
		default:
			return nil
		}
	}
}

// traces is what changes with the nat tables of iptables-legacy and with the device of IPVS.
func traces() []byte {
	var all bytes.Buffer
	if _, err := os.Stat("/proc/sys/net/ipv4/conf/" + device); !errors.Is(err, fs.ErrNotExist) {
		all.WriteString(device)
	}
	for _, t := range legacyTables {
		names, err := os.ReadFile(t.tables)
		fmt.Fprintf(&all, "%s%v", names, err != nil)
		if !bytes.Contains(names, []byte("nat")) {
			continue
		}
		info, err := legacyInfo(t.domain, t.level)
		fmt.Fprintf(&all, "%x%v", info, err)
	}
	return all.Bytes()
}
