// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// adIfindex is where a socket's filter finds the device that a packet came by (SKF_AD_OFF + SKF_AD_IFINDEX).
const adIfindex = 0xfffff000 + 8

// waitingBytes is room for the questions that wait, of each socket, while names change or an answer has to wait: some 5,000.
const waitingBytes = 2 << 20

// control prepares a socket before it is bound. A shared port is shared with others of the same user: each processor's sockets, and those
// of an agent that takes over.
func (s *Server) control(share bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			if share {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
				if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, waitingBytes) != nil { // without CAP_NET_ADMIN
					_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, waitingBytes) // or as much as the kernel gives
				}
			}
			if len(s.NotFrom) > 0 {
				filter := notFrom(s.NotFrom)
				err = errors.Join(err, unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
					&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
			}
		})
		return errors.Join(failed, err)
	}
}

// notFrom is a filter (classic BPF) that takes every packet but those of some devices.
func notFrom(devices []int) []unix.SockFilter {
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: adIfindex}}
	for _, ifindex := range devices {
		filter = append(filter,
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(ifindex), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
	}
	return append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff})
}
