// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/cluster/workload/client"
)

// outside is a host that is no part of the cluster, and the connections that it holds.
type outside struct {
	host *lab.Outside

	mu   sync.Mutex // of what is held, and of each question
	held []*connection
}

// The addresses of the Service web that no node has: the router sends packets for the external ones to n1, for those of the load balancer to n2.
var (
	external = []netip.Addr{netip.MustParseAddr("198.51.100.80"), netip.MustParseAddr("fd51::80")}
	balancer = []netip.Addr{netip.MustParseAddr("198.51.100.81"), netip.MustParseAddr("fd51::81")}
)

func newOutside(t *testing.T, c *kube.Cluster) *outside {
	t.Helper()
	host, err := c.Lab.AddOutside(lab.OutsideOptions{Name: "client"})
	must(t, err)
	for i := range external {
		must(t, c.Nodes[0].Attract(netip.PrefixFrom(external[i], external[i].BitLen())))
		must(t, c.Nodes[1].Attract(netip.PrefixFrom(balancer[i], balancer[i].BitLen())))
	}
	return &outside{host: host}
}

// connection is one to a server of the command workload.
type connection struct {
	*client.Conn
	to, who string // who answered first
}

func (o *outside) dial(network string, to netip.AddrPort) (*connection, error) {
	conn, err := o.host.Dial(context.Background(), network, to, lab.DialOptions{Patience: client.Attempt})
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: client.New(conn.Conn), to: network + "://" + to.String()}
	if err := c.ask(client.Attempt); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ask wants an answer of the server that gave the first one.
func (c *connection) ask(patience time.Duration) error {
	answer, err := c.Ask(patience)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", c.to, err)
	case !strings.HasPrefix(answer, "web-"):
		return fmt.Errorf("%s answers %q", c.to, answer)
	case c.who == "":
		c.who = answer
	case c.who != answer:
		return fmt.Errorf("%s: it was %q and is %q", c.to, c.who, answer)
	}
	return nil
}

// hold opens a connection to each of the Services' addresses. The agents may serve what came last a moment later than the API does.
func (o *outside) hold(s *smoke) {
	s.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, network := range []string{"tcp", "udp"} {
		var all []netip.AddrPort
		for _, n := range s.Nodes {
			for _, address := range []netip.Addr{n.V4, n.V6} {
				all = append(all, netip.AddrPortFrom(address, 30080), netip.AddrPortFrom(address, 30081))
			}
		}
		for i := range external {
			all = append(all, netip.AddrPortFrom(external[i], 80), netip.AddrPortFrom(balancer[i], 80))
		}
		for _, to := range all {
			s.await("from outside, "+network+" "+to.String(), func() error {
				c, err := o.dial(network, to)
				if err == nil {
					o.held = append(o.held, c)
				}
				return err
			})
			c := o.held[len(o.held)-1]
			s.Cleanup(func() { _ = c.Close() })
			if to.Port() == 30081 && !strings.Contains(c.who, " "+c.LocalAddr().String()) {
				s.Errorf("%s: with traffic policy Local the server saw %q, not the client's own address %s", c.to, c.who, c.LocalAddr())
			}
		}
	}
}

// goOn asks over each connection that is held.
func (o *outside) goOn(t *testing.T) {
	t.Helper()
	must(t, o.ask())
}

func (o *outside) ask() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range o.held {
		if err := c.ask(patience); err != nil {
			return fmt.Errorf("from outside, lost %w", err)
		}
	}
	return nil
}

// keepAsking has each connection used once a second until the test ends, or one is lost: netfilter forgets UDP that is silent for 30.
func (o *outside) keepAsking(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	done.Go(func() {
		for ctx.Err() == nil {
			if err := o.ask(); err != nil {
				if ctx.Err() == nil { // else they were closed
					t.Error(err)
				}
				return
			}
			time.Sleep(time.Second)
		}
	})
}

// drop ends all that is held.
func (o *outside) drop() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var errs []error
	for _, c := range o.held {
		errs = append(errs, c.Close())
	}
	o.held = nil
	return errors.Join(errs...)
}
