// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// atOnce is how many datagrams are read and written by one call at most. Those that are there are read: none is waited for.
const atOnce = 32

// mmsghdr is that of recvmmsg(2) and sendmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32 // in bytes, of the message
	_      [4]byte
}

// batch is datagrams that are read or written by one call. It is never copied: the kernel is told where its parts are.
type batch struct {
	socket  syscall.RawConn
	headers [atOnce]mmsghdr
	vectors [atOnce]unix.Iovec
	ends    [atOnce]unix.RawSockaddrInet6 // of either family

	first, last int // datagrams that the next call may read or write
	call        uintptr
	failure     error
	try         func(fd uintptr) (done bool) // the call, for RawConn: made once, as it would be allocated each time
}

func newBatch(socket syscall.RawConn, call uintptr) *batch {
	b := &batch{socket: socket, call: call}
	for i := range b.headers {
		h := &b.headers[i].header
		h.Iov, h.Iovlen = &b.vectors[i], 1
	}
	b.try = func(fd uintptr) bool {
		n, _, errno := unix.Syscall6(b.call, fd, uintptr(unsafe.Pointer(&b.headers[b.first])), uintptr(b.last-b.first), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			b.first, b.failure = b.first+int(n), nil
		case unix.EAGAIN:
			return false
		case unix.EINTR: // RawConn does not try again by itself
			b.failure = nil
		default:
			b.failure = errno
		}
		return true
	}
	return b
}

// read waits for a datagram, and returns how many there are. They are in buffers of those sizes.
func (b *batch) read(into *[atOnce][]byte) (int, error) {
	for i := range b.headers {
		h := &b.headers[i].header
		b.vectors[i].Base = &into[i][0]
		b.vectors[i].SetLen(len(into[i]))
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&b.ends[i])), unix.SizeofSockaddrInet6
	}
	b.first, b.last, b.failure = 0, atOnce, nil
	for b.first == 0 {
		if err := b.socket.Read(b.try); err != nil {
			return 0, err
		}
		if b.failure != nil {
			return 0, b.failure
		}
	}
	return b.first, nil
}

// from is who sent a datagram that was read.
func (b *batch) from(i int) netip.AddrPort {
	end := &b.ends[i]
	port := uint16(end.Port)
	bytes := (*[2]byte)(unsafe.Pointer(&port))
	number := uint16(bytes[0])<<8 | uint16(bytes[1])
	if end.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(end)).Addr), number)
	}
	from := netip.AddrFrom16(end.Addr)
	if end.Scope_id != 0 {
		from = from.WithZone(strconv.Itoa(int(end.Scope_id)))
	}
	return netip.AddrPortFrom(from, number)
}

// add prepares a datagram to be written, to whoever sent one that was read.
func (b *batch) add(data []byte, in *batch, i int) {
	h := &b.headers[b.last].header
	b.vectors[b.last].Base = &data[0]
	b.vectors[b.last].SetLen(len(data))
	h.Name, h.Namelen = (*byte)(unsafe.Pointer(&in.ends[i])), in.headers[i].header.Namelen
	b.last++
}

// write writes what was added. One that cannot be sent keeps no other one; the last such failure is returned.
func (b *batch) write() (err error) {
	for b.first < b.last {
		if err := b.socket.Write(b.try); err != nil {
			return err
		}
		if b.failure != nil {
			err = b.failure
			b.first++
		}
	}
	b.first, b.last = 0, 0
	return err
}
