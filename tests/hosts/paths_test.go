// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"golang.org/x/sync/errgroup"
)

// What must work wherever clients and backends are, on every kind of network, with strict reverse path filters everywhere.
func TestEveryPathOnEveryNetwork(t *testing.T) {
	for name, o := range networks() {
		t.Run(name, func(t *testing.T) {
			s := stageFor(t, o, o.lab == (lab.Options{})) // other tests have those networks
			s.part("every client and frontend and backend", checkMatrix)
			s.part("a pod reaches itself by every frontend", checkSelf)
			s.part("backends on nodes' own addresses answer everybody", checkNodeBackends)
			s.part("another node's port answers", checkOtherNodesPort)
			s.part("the node's ports answer on its loopback addresses", checkLoopback)
			s.part("service addresses answer pings from everywhere", checkPings)
			s.part("nearlb trace says what backends see", checkTrace)
			s.part("big transfers and datagrams from off the node arrive whole", checkContentFromOutside)
			s.part("an agent killed under load from off the node loses no connection", checkKilledAgent)
		})
	}
}

func checkSelf(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.near)...)
	for _, kind := range frontends() {
		for _, w := range ways() {
			conn := s.dial(s.near, of, kind, w)
			answer, err := conn.Who()
			if err != nil || answer.Server != s.near.Name || answer.Client.Addr() == s.near.Address(w.six) {
				t.Errorf("by %s over %s: %+v, %v", kind, w, answer, err)
			}
		}
	}
}

// C22: backends that are nodes' own addresses, on the clients' node and on another one.
func checkNodeBackends(t *testing.T, s *stage) {
	for _, n := range []*lab.Node{s.here, s.far.Node} {
		server, err := n.Serve(targetPort)
		if err != nil {
			t.Fatal(err)
		}
		of := s.next()
		of.publish(lab.Endpoint{Host: n})
		of.awaitServer(s.pod, n.Name)
		for _, client := range s.clients() {
			for _, kind := range frontends() {
				for _, w := range ways() {
					s.checkNodeBackend(client, s.dial(client, of, kind, w), n)
				}
			}
		}
		_ = server.Close()
	}
}

func (s *stage) checkNodeBackend(client host, conn *lab.Conn, backend *lab.Node) {
	s.t.Helper()
	defer conn.Close()
	answer, err := conn.Who()
	if err != nil || answer.Server != backend.Name {
		s.t.Errorf("%s -> %s: %+v, %v; want %s", client, conn.Remote(), answer, err, backend)
		return
	}
	want := conn.Local().Addr()
	far := backend != s.here
	if hidden := client == host(s.pod) && s.options.lab.Netfilter; far && (client == host(s.outside) && !s.carries(want.Is6()) || hidden) {
		want = s.here.Address(want.Is6())
	}
	if answer.Client.Addr() != want {
		s.t.Errorf("%s -> %s: %s sees %s, want %s", client, conn.Remote(), backend, answer.Client, want)
	}
}

// For the other node they all are clients off the node, wherever the backend is: on it, on the clients' own, or the clients' node itself.
func checkOtherNodesPort(t *testing.T, s *stage) {
	server, err := s.here.Serve(targetPort)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for name, backend := range map[string]lab.Endpoint{s.near.Name: {Pod: s.near}, s.far.Name: {Pod: s.far}, s.here.Name: {Host: s.here}} {
		of := s.next()
		of.publish(backend)
		of.awaitServer(s.pod, name)
		other := of.by(nodePort, s.far.Node)
		for _, client := range append(s.clients(), s.near) {
			for _, w := range ways() {
				conn := other.dial(client, w)
				if answer, err := conn.Who(); err != nil || answer.Server != name {
					t.Errorf("%s over %s: %+v, %v; want %s", client, w, answer, err, name)
				}
			}
		}
	}
}

func checkLoopback(t *testing.T, s *stage) {
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(backend)...)
		for _, w := range ways() {
			to := netip.AddrPortFrom(loopback(w.six), of.nodePort())
			conn := dial(t, s.here, w.network, to, s.port())
			if conn.Remote() != to {
				t.Errorf("the client's peer is %s, want %s", conn.Remote(), to)
			}
			s.checkAnswer(s.here, conn, backend)
		}
	}
}

func checkPings(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.far)...)
	for _, client := range []host{s.pod, s.outside} {
		for _, kind := range frontends() {
			for _, six := range []bool{false, true} {
				if err := client.Ping(s.by(of, kind).address(six).Addr()); err != nil {
					t.Errorf("%s pings %s: %v", client, kind, err)
				}
			}
		}
	}
}

// Segments as large as the kernel makes them, both ways, and datagrams in many fragments.
func checkContentFromOutside(t *testing.T, s *stage) {
	var transfers errgroup.Group
	asked := map[*lab.Pod]*service{}
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(backend)...)
		asked[backend] = s.by(of, nodePort)
		for _, six := range []bool{false, true} {
			conn := asked[backend].dial(s.outside, way{"tcp", six})
			transfers.Go(func() error { return transfer(conn, 16*megabyte) })
		}
	}
	if err := transfers.Wait(); err != nil {
		t.Error(err)
	}
	for backend, of := range asked { // the path's MTU is known by now: nothing is lost to its discovery
		for _, six := range []bool{false, true} {
			checkDatagrams(t, of.dial(s.outside, way{"udp", six}), backend.Name)
		}
	}
}

// Promise 1, for clients off the node and for the node's own.
func checkKilledAgent(t *testing.T, s *stage) {
	of := s.next()
	of.publish(ready(s.near, s.far)...)
	asked := s.by(of, loadBalancer)
	s.both(s.outside, of, []frontend{loadBalancer})
	l := asked.startLoad(s.outside, s.here)
	asked.more(l, some)
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	asked.more(l, some)
	s.agents[0] = s.startAgent(0)
	s.awaitServing(0)
	asked.more(l, some)
	l.end(t)
}
