// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// reusePort makes sockets that share their port with others of the same user: each processor's, and those of an agent that takes over.
var reusePort = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
	if failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); failed != nil {
		return failed
	}
	return err
}}
