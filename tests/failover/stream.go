// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// patience is how long a client waits for a connection: as many do.
const patience = 10 * time.Second

// sample is one connection: when it began, since the stream did, and how long it took until it was there, or failed.
type sample struct {
	began, took time.Duration
	failed      bool
}

// slow says that its client had to send its SYN again, at least.
func (s sample) slow() bool { return s.failed || s.took >= time.Second }

// stream opens connections at a rate, however long each takes, and closes each as soon as it is there. It is of the calling thread's namespace.
type stream struct {
	to    []netip.AddrPort // by turns
	rate  int              // a second
	lasts time.Duration

	began   time.Time
	epoll   int
	open    map[int32]time.Duration // by descriptor: when it began
	swept   time.Duration           // when it was last looked whose patience is over
	samples []sample
}

// streamFrom streams from pods side by side, rate a second altogether, and gives every connection in the order in which they began.
func streamFrom(from []*lab.Pod, to []netip.AddrPort, rate int, lasts time.Duration, began time.Time) ([]sample, error) {
	type result struct {
		samples []sample
		err     error
	}
	results := make(chan result, len(from))
	for _, pod := range from {
		go func() {
			s := stream{to: to, rate: rate / len(from), lasts: lasts, began: began}
			err := pod.Do(s.run)
			results <- result{s.samples, err}
		}()
	}
	var all []sample
	var errs []error
	for range from {
		r := <-results
		all, errs = append(all, r.samples...), append(errs, r.err)
	}
	slices.SortFunc(all, func(a, b sample) int { return int(a.began - b.began) })
	return all, errors.Join(errs...)
}

func (s *stream) run() (err error) {
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(s.epoll)
	s.open = map[int32]time.Duration{}
	for begun := 0; ; {
		now := time.Since(s.began)
		for due := int(min(now, s.lasts).Seconds() * float64(s.rate)); begun < due; begun++ {
			if err := s.connect(s.to[begun%len(s.to)]); err != nil {
				return err
			}
		}
		if now >= s.lasts && len(s.open) == 0 {
			return nil
		}
		if err := s.reap(); err != nil {
			return err
		}
	}
}

func (s *stream) connect(to netip.AddrPort) error {
	address, family := socketAddress(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	began := time.Since(s.began)
	switch err := unix.Connect(fd, address); {
	case errors.Is(err, unix.EINPROGRESS):
		s.open[int32(fd)] = began
		return unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(fd)})
	default: // at once, either way
		s.samples = append(s.samples, sample{began: began, failed: err != nil})
		return unix.Close(fd)
	}
}

// reap takes what has come to its end within a millisecond, or its patience's.
func (s *stream) reap() error {
	events := make([]unix.EpollEvent, 256)
	n, err := unix.EpollWait(s.epoll, events, 1)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	for _, e := range events[:max(n, 0)] {
		code, err := unix.GetsockoptInt(int(e.Fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err = errors.Join(err, s.end(e.Fd, code != 0)); err != nil {
			return err
		}
	}
	now := time.Since(s.began)
	if now-s.swept < 100*time.Millisecond {
		return nil
	}
	s.swept = now
	for fd, began := range s.open {
		if now-began > patience {
			if err := s.end(fd, true); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stream) end(fd int32, failed bool) error {
	began := s.open[fd]
	delete(s.open, fd)
	s.samples = append(s.samples, sample{began: began, took: time.Since(s.began) - began, failed: failed})
	// A child that is about to run a program has the socket yet: closed alone, it would be told of under a number that is another's by then.
	return errors.Join(unix.EpollCtl(s.epoll, unix.EPOLL_CTL_DEL, int(fd), nil), unix.Close(int(fd)))
}

// socketAddress is the kernel's form of an address, and its family.
func socketAddress(a netip.AddrPort) (unix.Sockaddr, int) {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, unix.AF_INET
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, unix.AF_INET6
}

// once makes one connection of a pod.
func once(from *lab.Pod, to netip.AddrPort, within time.Duration) error {
	return from.Do(func() error {
		address, family := socketAddress(to)
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Connect(fd, address); err == nil || !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(within.Milliseconds()))
		if err != nil || n == 0 {
			return fmt.Errorf("connect to %s: nothing within %s, %w", to, within, err)
		}
		if code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			return errors.Join(err, syscall.Errno(code))
		}
		return nil
	})
}

// within are those that began from one time on and before another.
func within(all []sample, from, to time.Duration) (out []sample) {
	for _, s := range all {
		if s.began >= from && s.began < to {
			out = append(out, s)
		}
	}
	return out
}

func count(all []sample, f func(sample) bool) (n int) {
	for _, s := range all {
		if f(s) {
			n++
		}
	}
	return n
}

// percentile is how long at most so many in a hundred took; those that failed took longer than any.
func percentile(all []sample, p int) (took time.Duration, failed bool) {
	if len(all) == 0 {
		return 0, false
	}
	sorted := slices.SortedFunc(slices.Values(all), func(a, b sample) int {
		if a.failed != b.failed {
			return map[bool]int{true: 1, false: -1}[a.failed]
		}
		return int(a.took - b.took)
	})
	s := sorted[max(0, (len(sorted)*p+99)/100-1)]
	return s.took, s.failed
}

// rates is how many connections were there in each second of a stream, by the second in which they were.
func rates(all []sample, lasts time.Duration) []int {
	out := make([]int, int(lasts.Seconds()))
	for _, s := range all {
		if second := int((s.began + s.took).Seconds()); !s.failed && second < len(out) {
			out[second]++
		}
	}
	return out
}
