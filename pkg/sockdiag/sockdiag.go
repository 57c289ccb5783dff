// SPDX-License-Identifier: Apache-2.0

// Package sockdiag ends connected UDP sockets whose backend is gone: the kernel is asked to (SOCK_DESTROY of sock_diag(7)), and their
// owner's next call fails with ECONNABORTED. No program sees their datagrams, so nothing else could stop them from sending to a
// backend that is gone.
package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Chosen names sockets that are to end, by their cookie and whom they are connected to.
type Chosen func(cookie uint64, remote netip.AddrPort) bool

// End ends the connected UDP sockets of a network namespace that are chosen, and gives their number. netns.None() is the
// calling thread's own namespace.
func End(where netns.NsHandle, chosen Chosen) (int, error) {
	kernel, err := nl.GetNetlinkSocketAt(where, netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	d := diag{&nl.SocketHandle{Socket: kernel}}
	ended := 0
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		found, err := d.list(family)
		errs = append(errs, err)
		for _, s := range found {
			if !chosen(s.cookie(), s.remote()) {
				continue
			}
			if err := d.destroy(s); err == nil {
				ended++
			} else if !errors.Is(err, unix.ENOENT) { // closed meanwhile
				errs = append(errs, err)
			}
		}
	}
	return ended, errors.Join(errs...)
}

// Probe asks the kernel whether it ends UDP sockets, by trying with one that cannot be: of port 0. The error says what is
// missing.
func Probe() error {
	kernel, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	d := diag{&nl.SocketHandle{Socket: kernel}}
	if _, err := d.list(unix.AF_INET); err != nil {
		return err
	}
	if err := d.destroy(socket{family: unix.AF_INET}); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// diag speaks sock_diag in one namespace.
type diag struct{ handle *nl.SocketHandle }

func (d diag) request(kind, flags int, r request) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_INET_DIAG: d.handle}
	req.AddRawData(r.bytes())
	return req
}

// listTries is how often a list is asked for again that changed while the kernel wrote it.
const listTries = 5

// list reads the connected UDP sockets of one family.
func (d diag) list(family uint8) (found []socket, err error) {
	for range listTries {
		var messages [][]byte
		messages, err = d.request(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP, request{family: family, states: established}).
			Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		found = found[:0]
		for _, m := range messages {
			if s, ok := parse(m); ok {
				found = append(found, s)
			}
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
	}
	if errors.Is(err, unix.ENOENT) {
		err = fmt.Errorf("%w (the kernel lacks CONFIG_INET_UDP_DIAG)", err)
	}
	if err != nil {
		return nil, fmt.Errorf("list UDP sockets: %w", err)
	}
	return found, nil
}

func (d diag) destroy(s socket) error {
	_, err := d.request(nl.SOCK_DESTROY, unix.NLM_F_ACK, request{family: s.family, id: s.id}).Execute(unix.NETLINK_INET_DIAG, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w (the kernel lacks CONFIG_INET_DIAG_DESTROY)", err)
	}
	if err != nil {
		return fmt.Errorf("end UDP socket to %s: %w", s.remote(), err)
	}
	return nil
}

// socket is one that was listed.
type socket struct {
	family uint8
	id     [sizeofID]byte // struct inet_diag_sockid, with its cookie: nobody else's socket is met by it
}

// Offsets in struct inet_diag_sockid.
const (
	offsetRemotePort    = 2
	offsetRemoteAddress = 20
	offsetCookie        = 40
)

func (s socket) cookie() uint64 {
	low, high := binary.NativeEndian.Uint32(s.id[offsetCookie:]), binary.NativeEndian.Uint32(s.id[offsetCookie+4:])
	return uint64(high)<<32 | uint64(low)
}

func (s socket) remote() netip.AddrPort {
	address, _ := netip.AddrFromSlice(s.id[offsetRemoteAddress:][:16])
	if s.family == unix.AF_INET {
		address, _ = netip.AddrFromSlice(s.id[offsetRemoteAddress:][:4])
	}
	return netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(s.id[offsetRemotePort:]))
}
