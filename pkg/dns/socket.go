// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"net"
	"sync"
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

// The second descriptor of a listener is from here on, above those of connections; highDescriptors are as many as the last one may need
// where a process may have no more.
const (
	aboveConnections = 8 << 10
	highDescriptors  = 64
)

// firstToEnd is a listener that ends before all connections do when its process is killed. Linux ends the files of a process in the
// reverse order in which it took their last descriptors away (task_work_run), and it takes these away from the lowest on. So a listener
// with a second descriptor above all others ends first. Otherwise a client whose connection was reset would find it still there when it asks
// again, and be reset a second time; a process with many tables and threads takes tenths of a second to end.
type firstToEnd struct {
	net.Listener
	endSecond func()
}

// endFirst gives a listener its second descriptor. It is as good a listener without one until it is killed.
func endFirst(l net.Listener) net.Listener {
	second := -1
	if socket, ok := l.(syscall.Conn); ok {
		if raw, err := socket.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { second = highCopy(fd) })
		}
	}
	if second < 0 {
		return l
	}
	return &firstToEnd{Listener: l, endSecond: sync.OnceFunc(func() { _ = unix.Close(second) })}
}

// highCopy is another descriptor of the same file; -1: there is none.
func highCopy(fd uintptr) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur <= highDescriptors {
		return -1
	}
	second, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, int(min(aboveConnections, limit.Cur-highDescriptors)))
	if err != nil {
		return -1
	}
	return second
}

// Close ends both descriptors: with one of them the socket would go on listening.
func (l *firstToEnd) Close() error {
	l.endSecond()
	return l.Listener.Close()
}
