// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

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
