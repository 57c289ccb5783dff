// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"io"
	"net/netip"
	"sync"
)

// Host is who has sockets: a pod, a node, or a client outside of the cluster. It has one address of each family.
type Host struct {
	*Namespace
	V4, V6 netip.Addr // of a node: its InternalIPs

	sockets sync.Mutex // guards what follows
	servers []io.Closer
	gone    bool
}

// Address is the host's address of one family.
func (h *Host) Address(six bool) netip.Addr {
	if six {
		return h.V6
	}
	return h.V4
}

// Own gives the host further addresses, which are on none of its links.
func (h *Host) Own(addresses ...netip.Addr) error {
	for _, a := range addresses {
		if err := h.addAddress("lo", single(a)); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) String() string { return h.Name }

// keep has a server closed with the host.
func (h *Host) keep(c io.Closer) {
	h.sockets.Lock()
	defer h.sockets.Unlock()
	h.servers = append(h.servers, c)
}

// close ends the host's servers and leaves its namespace. It may be called again.
func (h *Host) close() error {
	h.sockets.Lock()
	defer h.sockets.Unlock()
	if h.gone {
		return nil
	}
	h.gone = true
	var errs []error
	for _, s := range h.servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, h.Namespace.close())...)
}
