// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
)

// stage is a cluster of two nodes with clients of every kind. Clients outside are sent to the first node, by the router.
type stage struct {
	*cluster
	pod       *lab.Pod     // on the first node
	outside   *lab.Outside // off every node
	here      *lab.Node    // the first node
	near, far *lab.Pod     // servers on the first and on the second node
	own       lb.OffNode   // by annotation, of all Services; "": as the agents' flag says
	*counter
}

// counter numbers what a stage has.
type counter struct {
	services int
	ports    atomic.Uint32 // local ports that connections had
	commands atomic.Uint32 // that ran on the first node: each has a log of its own
}

// networks are the kinds of network that paths are tested on, and how pods are connected there.
func networks() map[string]options {
	return map[string]options{
		"routed":                    {},
		"routed, as clsact filters": {agent: []string{"--attach", "clsact"}},
		"one segment, with a CNI's rules, MTU 1280":   {bridge: true, lab: lab.Options{Network: lab.Shared, Netfilter: true, MTU: 1280}},
		"through VXLAN, with a CNI's rules, MTU 9000": {lab: lab.Options{Network: lab.Tunneled, Netfilter: true, MTU: 9000}},
	}
}

func newStage(t *testing.T, o options) *stage {
	t.Helper()
	c := newCluster(t, o)
	s := &stage{cluster: c, counter: &counter{}, here: c.node(0)}
	s.drawOutside()
	s.drawPods()
	return s
}

// drawOutside adds the client off every node, whose packets to Services the router sends to the first one.
func (s *stage) drawOutside() {
	s.t.Helper()
	var err error
	if s.outside, err = s.AddOutside(lab.OutsideOptions{Name: "outside"}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.here.Attract(attracted()...); err != nil {
		s.t.Fatal(err)
	}
}

// drawPods adds the client and the servers that are pods.
func (s *stage) drawPods() {
	s.t.Helper()
	s.pod, s.near, s.far = s.cluster.pod(0, "pod"), s.server(0, "near"), s.server(1, "far")
}

// in is the stage for a subtest.
func (s *stage) in(t *testing.T) *stage {
	c, out := *s.cluster, *s
	c.t, out.cluster = t, &c
	return &out
}

// part runs a part of a test on the same stage.
func (s *stage) part(name string, test func(t *testing.T, s *stage)) {
	s.t.Run(name, func(t *testing.T) { test(t, s.in(t)) })
}

// clients are all kinds of client of the first node.
func (s *stage) clients() []host { return []host{s.pod, s.here, s.outside} }

// carries says whether new connections from off the node go through the tunnel: IPv6's do not where it has no room for 1280 bytes.
func (s *stage) carries(six bool) bool {
	mtu := s.options.lab.MTU
	return s.options.carries && (!six || mtu == 0 || mtu >= 1280+56+24)
}

// next is a new Service with addresses of every kind. Nothing is written before publish.
func (s *stage) next() *service {
	s.services++
	of := s.service(s.services).everywhere()
	if s.own != "" {
		of.Annotations = map[string]string{"nearlb.io/off-node": string(s.own)}
	}
	return of
}

// dial opens a connection to the Service on the first node from a port that no other one had: the kernel would use a port
// again towards another frontend, and a port that two connections to one backend share is changed for one of them.
func (s *stage) dial(client host, of *service, kind frontend, w way) *lab.Conn {
	s.t.Helper()
	return dial(s.t, client, w.network, s.by(of, kind).address(w.six), s.port())
}

// port is above those of the agents, below those that the kernel chooses and below node ports.
func (s *stage) port() uint16 { return uint16(11000 + s.ports.Add(1)) }

// serve publishes the Service with these endpoints and waits until pods of the first node are answered by the first one.
func (s *stage) serve(of *service, endpoints ...lab.Endpoint) {
	s.t.Helper()
	of.publish(endpoints...)
	of.awaitServer(s.pod, endpoints[0].Pod.Name)
}

// seen judges what a backend sees of a client: the client itself, unless it is off the node and the backend is on
// another one; then the address that the node's routing gives for that backend, and a port for such connections. The
// node's own clients have that address anyway.
func (s *stage) seen(client host, conn *lab.Conn, backend *lab.Pod, got netip.AddrPort) error {
	translated := client == host(s.outside) && backend.Node != s.here && !s.carries(got.Addr().Is6())
	if !translated && got != conn.Local() {
		return fmt.Errorf("the backend sees %s, the client is %s", got, conn.Local())
	}
	if translated && got.Port() < snatPorts { // the last one is the last of all
		return fmt.Errorf("the backend sees port %d, want one from %d on", got.Port(), snatPorts)
	}
	if !translated && client != host(s.here) {
		return nil
	}
	if want, err := s.here.Source(backend.Address(got.Addr().Is6())); err != nil || got.Addr() != want {
		return fmt.Errorf("the backend sees %s, want %s; %w", got.Addr(), want, err)
	}
	return nil
}

// snatPorts is the first of the ports that the agent uses by default (--snat-ports); they go on to the last one there is.
const snatPorts = 61000
