// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// Who answers.
const farServer = "far"

var nearServers = [2]string{"near-a", "near-b"}

// prober makes connections from a pod, one after the other.
type prober struct {
	from   *lab.Pod
	failed int // connections that got no answer, while endpoints changed
}

// How long a connection may take. Before a proxy's start nothing answers: how long is waited there for one connection that fails is how coarse
// the figure of a start is.
const (
	patience      = time.Second
	startPatience = 25 * time.Millisecond
)

// ask makes one connection and gives the name of the server that it reached, if each step takes no longer than within. It is of the calling
// thread's namespace.
func ask(to netip.AddrPort, within time.Duration) (string, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	patience := unix.NsecToTimeval(within.Nanoseconds())
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &patience); err != nil {
			return "", err
		}
	}
	// Reset at the end: thousands of connections leave no port waiting.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return "", err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return "", err
	}
	if _, err := unix.Write(fd, []byte("who\n")); err != nil {
		return "", err
	}
	buffer := make([]byte, 256)
	n, err := unix.Read(fd, buffer)
	if err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(string(buffer[:n]), " ")
	return name, nil
}

// arrives does something and measures how long it takes until a new connection reaches the server that it is to reach: to the
// moment when that connection began. What is done gives the moment that counts as its own.
func (p *prober) arrives(to netip.Addr, want string, limit time.Duration, change func() time.Time) (took time.Duration, err error) {
	err = p.from.Do(func() error {
		began := change()
		for {
			at := time.Now()
			name, err := ask(netip.AddrPortFrom(to, servicePort), patience)
			if err != nil {
				p.failed++
			}
			if took = max(0, at.Sub(began)); name == want {
				return nil
			}
			if took > limit {
				return fmt.Errorf("await that a new connection to %s reaches %s: after %s it is %q, %v", to, want, took, name, err)
			}
			pace(took)
		}
	})
	return took, err
}

// pace waits a little until the next connection, so that they neither take the processor from who is measured nor make the
// figure much coarser: a twentieth of what passed, at least a fifth of a millisecond.
func pace(passed time.Duration) {
	time.Sleep(min(max(passed/20, 200*time.Microsecond), 20*time.Millisecond))
}

// allArrive waits until every one of these is reached through its address, and gives the moment when the last connection began.
func (p *prober) allArrive(want map[netip.Addr]string, limit time.Duration) (at time.Time, err error) {
	deadline := time.Now().Add(limit)
	err = p.from.Do(func() error {
		for to, name := range want {
			for {
				at = time.Now()
				got, err := ask(netip.AddrPortFrom(to, servicePort), startPatience)
				if got == name {
					break
				}
				if at.After(deadline) {
					return fmt.Errorf("await that new connections to %s reach %s: after %s it is %q, %v", to, name, limit, got, err)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
		return nil
	})
	return at, err
}
