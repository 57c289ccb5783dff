// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lab"
)

// How long a server works for a request, one after the other, and what clients do: each asks, waits for the answer, closes its connection,
// and pauses for that long on average. Nine servers do 50 requests a second each, the slow one 5: together 455, of which these ask about 80 %
// where each has its answer soon.
const (
	works       = 20 * time.Millisecond
	worksSlowly = 10 * works
	loadClients = 44
	loadPause   = 90 * time.Millisecond
	loadLasts   = 30 * time.Second
	loadBegins  = 4 * time.Second // until then nothing is measured
)

// paced answers requests in the place of a server, one at a time.
func (s *server) paced(takes time.Duration) error {
	if err := s.serves.Close(); err != nil {
		return err
	}
	var working sync.Mutex
	for _, six := range []bool{false, true} {
		var listener net.Listener
		if err := s.Do(func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(s.Address(six), targetPort).String())
			return err
		}); err != nil {
			return err
		}
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go answerPaced(c, &working, takes)
			}
		}()
	}
	return nil
}

func answerPaced(c net.Conn, working *sync.Mutex, takes time.Duration) {
	defer c.Close()
	var request [1]byte
	if _, err := c.Read(request[:]); err != nil {
		return
	}
	working.Lock()
	time.Sleep(takes)
	working.Unlock()
	_, _ = c.Write(request[:])
}

// ask has a client ask once.
func ask(from *lab.Pod, to netip.AddrPort) error {
	var c net.Conn
	if err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", to.String(), patience)
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	answer := []byte{'?'}
	_, err := c.Write(answer)
	if err == nil {
		_, err = c.Read(answer)
	}
	return err
}

// playLoad has one server of ten work ten times as long as the others.
func playLoad(w *world) (f figures, err error) {
	for i, s := range w.of("web") {
		takes := works
		if i == 0 {
			takes = worksSlowly
		}
		err = errors.Join(err, s.paced(takes))
	}
	if err != nil {
		return f, err
	}
	f.lasts = w.spans(loadLasts)
	began := time.Now()
	each := make([][]sample, loadClients)
	var all errgroup.Group
	for i := range each {
		all.Go(func() error {
			draw := rand.New(rand.NewPCG(1, uint64(i)))
			for time.Since(began) < f.lasts {
				begins := time.Now()
				err := ask(w.clients[i%len(w.clients)], at("web", draw.IntN(2) == 1))
				each[i] = append(each[i], sample{began: begins.Sub(began), took: time.Since(begins), failed: err != nil})
				time.Sleep(time.Duration(draw.ExpFloat64() * float64(loadPause)))
			}
			return nil
		})
	}
	err = all.Wait()
	for _, some := range each {
		f.all = append(f.all, within(some, w.spans(loadBegins), f.lasts)...)
	}
	return f, err
}

func playLoadLeast(w *world) (figures, error) {
	w.annotations = map[string]string{"nearlb.io/balance": "least-connections"}
	w.publish()
	return playLoad(w)
}
