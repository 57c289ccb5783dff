// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// forger is a pod that sends SYNs by a raw socket. Its host knows nothing of these connections and would reset what is answered: where that is not
// to be, its rules lose the answers.
type forger struct {
	from *lab.Pod
	to   netip.AddrPort // IPv4
	fd   int
	sent int
}

func newForger(from *lab.Pod, to netip.AddrPort) (*forger, error) {
	f := &forger{from: from, to: to}
	return f, from.Do(func() (err error) {
		f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
}

func (f *forger) close() error { return unix.Close(f.fd) }

// send sends one SYN from a port.
func (f *forger) send(port uint16) error {
	var tcp [20]byte
	binary.BigEndian.PutUint16(tcp[0:], port)
	binary.BigEndian.PutUint16(tcp[2:], f.to.Port())
	binary.BigEndian.PutUint32(tcp[4:], uint32(port)<<8)
	tcp[12], tcp[13] = 5<<4, 2 // five words; SYN
	binary.BigEndian.PutUint16(tcp[14:], 65535)
	binary.BigEndian.PutUint16(tcp[16:], checksum4(f.from.V4, f.to.Addr(), tcp[:]))
	f.sent++
	err := unix.Sendto(f.fd, tcp[:], 0, &unix.SockaddrInet4{Addr: f.to.Addr().As4()})
	if errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// checksum4 is TCP's, of a segment with an even number of bytes.
func checksum4(from, to netip.Addr, segment []byte) uint16 {
	a, b := from.As4(), to.As4()
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(segment))
	for _, part := range [][]byte{a[:], b[:], segment} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// forge has a further pod of the clients' node send SYNs to the Service while connections are opened: each port once, or all of a few again and again.
func (w *world) forge(ports, rate int, mute bool) (f figures, err error) {
	pod, err := w.here.AddPod("forger")
	if err != nil {
		return f, err
	}
	if err := lab.Await(time.Minute, func() bool { return once(pod, at("web", false), 200*time.Millisecond) == nil }); err != nil {
		return f, err
	}
	if mute {
		err = pod.Netfilter("table inet mute { chain input { type filter hook input priority filter; tcp flags & (syn | ack) == syn | ack drop; }; }")
		if err != nil {
			return f, err
		}
	}
	forger, err := newForger(pod, at("web", false))
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, forger.close()) }()
	f, err = w.healthy(func() error {
		began := time.Now()
		for until := began.Add(w.spans(30 * time.Second)); time.Now().Before(until); time.Sleep(time.Millisecond) {
			for due := int(time.Since(began).Seconds() * float64(rate)); forger.sent < due; {
				if err := forger.send(uint16(1024 + forger.sent%ports)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	f.detail += fmt.Sprintf(" beside %s such SYNs", thousands(forger.sent))
	return f, err
}

// playFlood has each SYN come from another port.
func playFlood(w *world) (figures, error) { return w.forge(64000, 10000, false) }

// playNever has each of a hundred SYNs come again about once in a second, whatever is answered.
func playNever(w *world) (figures, error) { return w.forge(100, 80, true) }
