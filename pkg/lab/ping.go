// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	echoRequest4, echoReply4 = 8, 0     // RFC 792
	echoRequest6, echoReply6 = 128, 129 // RFC 4443
)

// Ping sends one ICMP echo request from the host and waits for the reply that carries the same content. The kernel checks
// the reply's checksum and identifier.
func (h *Host) Ping(to netip.Addr) error {
	socket, err := h.pingSocket(to)
	if err != nil {
		return fmt.Errorf("ping %s: %w", to, err)
	}
	defer socket.Close()
	request, reply := byte(echoRequest4), byte(echoReply4)
	if to.Is6() {
		request, reply = echoRequest6, echoReply6
	}
	message := append([]byte{request, 0, 0, 0, 0, 0, 0, 1}, "is anybody there?"...)
	if _, err := socket.Write(message); err != nil {
		return fmt.Errorf("ping %s: %w", to, err)
	}
	answer := make([]byte, 128)
	if err := socket.SetReadDeadline(time.Now().Add(Patience)); err != nil {
		return err
	}
	n, err := socket.Read(answer)
	if err != nil {
		return fmt.Errorf("ping %s: %w", to, err)
	}
	if n != len(message) || answer[0] != reply || !bytes.Equal(answer[6:n], message[6:]) {
		return fmt.Errorf("ping %s: wrong answer % x", to, answer[:n])
	}
	return nil
}

// pingSocket is a socket for echo requests, connected, so that only answers from that address arrive.
func (h *Host) pingSocket(to netip.Addr) (*os.File, error) {
	domain, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	if to.Is6() {
		domain, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	var file *os.File
	err := h.Do(func() error {
		fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "ping")
		return unix.Connect(fd, socketName(to))
	})
	return file, err
}

func socketName(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}
