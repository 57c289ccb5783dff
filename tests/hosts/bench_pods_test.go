// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// pair is a pod and whom it asks: a server's own address, or a Service's.
type pair struct {
	*stage
	name string
	to   func(six bool) netip.AddrPort
	got  [2]measured
}

// betweenPods measures questions of a byte over connections that stay, of a pod to a pod of its node and of another, past every proxy and
// through each.
func (b *bench) betweenPods(t *testing.T) {
	var here, far []*pair
	add := func(name string, o options, direct bool) {
		s := newBusyStage(t, o)
		here = append(here, s.pairsTo(name, s.near, direct)...)
		far = append(far, s.pairsTo(name, s.far, direct)...)
	}
	add("nearlb", options{}, true)
	add("nearlb, `--shortcut=on`", options{agent: []string{"--shortcut", "on"}}, false)
	if b.kubeProxy != "" {
		add("kube-proxy", options{kubeProxy: b.kubeProxy}, true)
	}
	for title, pairs := range map[string][]*pair{"of the same node": here, "of another node": far} {
		for family, six := range []bool{false, true} {
			for range b.rounds {
				for _, p := range pairs {
					p.got[family].count(func() float64 { return p.questions(t, six, b.lasts) })
				}
			}
		}
		rows := make([]row, len(pairs))
		for i, p := range pairs {
			rows[i] = row{name: p.name, got: &p.got, of: &pairs[0].got}
			if b.kubeProxy != "" {
				rows[i].proxy = &pairs[len(pairs)-1].got
			}
		}
		b.table("questions a second of a pod to one "+title, "a connection past all proxies", rows)
	}
}

// pairsTo are the first node's pod and a server through a Service, and its own address if that is asked for.
func (s *stage) pairsTo(name string, server *lab.Pod, direct bool) (out []*pair) {
	answerQuestions(s.t, server)
	of := s.next()
	of.publishAt(questionPort, ready(server)...)
	straight := func(six bool) netip.AddrPort { return netip.AddrPortFrom(server.Address(six), questionPort) }
	if direct {
		out = append(out, &pair{stage: s, name: name + "'s node, not to the Service", to: straight})
	}
	out = append(out, &pair{stage: s, name: name, to: of.address})
	for _, p := range out {
		for _, six := range []bool{false, true} {
			s.await(p.name+" answers", func() bool {
				return s.pod.Do(func() error { fd, err := openQuestions(p.to(six)); _ = unix.Close(fd); return err }) == nil
			})
		}
	}
	return out
}

// questionPort is where pods answer questions.
const questionPort = 9001

// answerQuestions sends back each byte of each connection, until the test ends.
func answerQuestions(t *testing.T, pod *lab.Pod) {
	t.Helper()
	for _, six := range []bool{false, true} {
		var fd int
		if err := pod.Do(func() (err error) {
			fd, err = listenRush(netip.AddrPortFrom(pod.Address(six), questionPort))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		var all errgroup.Group
		all.Go(func() error {
			return acceptEach(fd, func(fd int) { all.Go(func() error { answerEach(fd); return nil }) })
		})
		endListener(t, fd, &all)
	}
}

// answerEach sends back each byte, until the client has gone.
func answerEach(fd int) {
	defer unix.Close(fd)
	var b [1]byte
	for {
		if n, err := uninterrupted(unix.Read, fd, b[:]); n != 1 || err != nil {
			return
		}
		if _, err := uninterrupted(unix.Write, fd, b[:]); err != nil {
			return
		}
	}
}

// openQuestions connects, and asks once.
func openQuestions(to netip.AddrPort) (int, error) {
	address, family := rushAddress(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	patience := unix.NsecToTimeval(int64(rushPatience))
	err = errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &patience),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), rushConnect(fd, address))
	if err == nil {
		err = ask(fd)
	}
	return fd, err
}

func ask(fd int) error {
	b := [1]byte{'q'}
	if _, err := uninterrupted(unix.Write, fd, b[:]); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if n, err := uninterrupted(unix.Read, fd, b[:]); n != 1 || err != nil {
		return fmt.Errorf("read: %d bytes, %w", n, err)
	}
	return nil
}

// questions asks over eight connections at a time, as long as that lasts, and counts the answers.
func (p *pair) questions(t *testing.T, six bool, lasts time.Duration) float64 {
	var asked atomic.Int64
	var all errgroup.Group
	began := time.Now()
	for range 8 {
		all.Go(func() error {
			return p.pod.Do(func() error {
				fd, err := openQuestions(p.to(six))
				defer unix.Close(fd)
				for err == nil && time.Since(began) < lasts {
					err = ask(fd)
					asked.Add(1)
				}
				return err
			})
		})
	}
	if err := all.Wait(); err != nil {
		t.Errorf("%s: %v", p.name, err)
	}
	return float64(asked.Load())
}
