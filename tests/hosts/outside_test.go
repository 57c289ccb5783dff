// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

// A router between the nodes refuses what is too big for the other node's link; its refusal quotes the node's own address
// and port, which the client off the node knows nothing of, and must reach its socket all the same.
func TestANarrowPathBehindTheNodeIsDiscoveredByClientsOffTheNode(t *testing.T) {
	const narrow = 1400
	s := onStage(t, options{})
	s.outside = s.outsider(lab.OutsideOptions{Name: "of a narrow path"}) // and knows it for long
	s.narrow(s.far.Node, narrow)
	s.checkPathMTU(nodePort, narrow)
}

// The tunnel takes less than the links around it, so that the node itself has to refuse.
func TestATunnelNarrowerThanTheClientsPathIsDiscovered(t *testing.T) {
	s := onStage(t, options{lab: lab.Options{Network: lab.Tunneled, Netfilter: true}})
	tunnel, err := s.here.Link().LinkByName(lab.Tunnel)
	if err != nil {
		t.Fatal(err)
	}
	s.checkPathMTU(loadBalancer, tunnel.Attrs().MTU)
}

// checkPathMTU asks the far server. One frontend alone: once its pod knows the path it asks for small segments.
func (s *stage) checkPathMTU(kind frontend, want int) {
	s.t.Helper()
	of := s.next()
	s.serve(of, ready(s.far)...)
	asked := s.by(of, kind)
	for _, six := range []bool{false, true} {
		conn := asked.dial(s.outside, way{"tcp", six})
		if err := transfer(conn, 4*megabyte); err != nil {
			s.t.Error(err)
		}
		if mtu, err := conn.PathMTU(); err != nil || mtu != want {
			s.t.Errorf("the socket to %s knows a path MTU of %d, %v; want %d", conn.Remote(), mtu, err, want)
		}
		checkDatagrams(s.t, asked.dial(s.outside, way{"udp", six}), s.far.Name)
	}
}

// A router on the client's side refuses what is too big for the client's path; its refusal quotes the frontend's address,
// which the backend knows nothing of.
func TestANarrowPathToTheClientIsDiscoveredByBackends(t *testing.T) {
	s := onStage(t, options{lab: lab.Options{Netfilter: true}})
	client := s.outsider(lab.OutsideOptions{Name: "far away", PathMTU: 1400})
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(backend)...)
		asked := s.by(of, loadBalancer)
		for _, six := range []bool{false, true} {
			if err := transfer(asked.dial(client, way{"tcp", six}), 2*megabyte); err != nil {
				t.Errorf("%s: %v", backend, err)
			}
			checkDatagrams(t, asked.dial(client, way{"udp", six}), backend.Name)
		}
	}
	s.awaitVerdict(0, "translate_icmp")
}

// With as many connections as there are ports, one more towards the same backend is refused service, and nobody else is:
// another backend has ports of its own, and the connections go on.
func TestPortsThatRunOutTowardsOneBackendHarmNobodyElse(t *testing.T) {
	s := onStage(t, options{alone: true, agent: []string{"--snat-ports", "61000-61003", "--snat-all-ports=false"}})
	other := s.server(1, "other")
	full, free := s.next(), s.next()
	s.serve(full, ready(s.far)...)
	s.serve(free, ready(other)...)
	s.mayDrop("drop_ports_full")
	for _, six := range []bool{false, true} {
		w := way{"tcp", six}
		seen := map[string]*lab.Conn{}
		for range 4 {
			conn := s.by(full, nodePort).dial(s.outside, w)
			answer, err := conn.Who()
			if err != nil {
				t.Fatal(err)
			}
			seen[answer.Client.String()] = conn
		}
		if len(seen) != 4 {
			t.Errorf("%s: four connections are %d to the backend: %v", w, len(seen), seen)
		}
		if answer, err := s.by(full, nodePort).inVain(s.outside, w); err == nil {
			t.Errorf("%s: a fifth connection has one of four ports: %+v", w, answer)
		}
		if answer, err := s.by(free, nodePort).ask(s.outside, w); err != nil {
			t.Errorf("%s: another backend: %+v, %v", w, answer, err)
		}
		for address, conn := range seen {
			if answer, err := conn.Who(); err != nil || answer.Client.String() != address {
				t.Errorf("%s: the connection seen as %s goes on as %+v, %v", w, address, answer, err)
			}
		}
	}
	s.awaitVerdict(0, "drop_ports_full")
}

// A connection that its client closed leaves nothing with the backend but a port that serves the next one: a few ports are enough for as
// many connections as there are, one after the other. None is refused one, as the cluster sees at the end.
func TestAFewPortsServeConnectionsThatTheirClientsClose(t *testing.T) {
	s := onStage(t, options{alone: true, agent: []string{"--snat-ports", "61000-61003", "--snat-all-ports=false"}})
	of := s.next()
	s.serve(of, ready(s.far)...)
	for _, six := range []bool{false, true} {
		for n := range 200 {
			conn, err := s.outside.Dial(context.Background(), "tcp", s.by(of, nodePort).address(six), lab.DialOptions{})
			if err != nil {
				t.Fatalf("connection %d: %v", n, err)
			}
			answer, err := conn.Who()
			if err == nil {
				err = conn.Conn.(*net.TCPConn).CloseWrite()
			}
			if err == nil {
				_, err = io.Copy(io.Discard, conn) // until the server has closed as well
			}
			if err := errors.Join(err, conn.Close()); err != nil || answer.Server != s.far.Name {
				t.Fatalf("connection %d is answered by %q, %v", n, answer.Server, err)
			}
		}
	}
}

// Two clients off the node with the same port, and one client with the same port towards two frontends of one backend:
// connections of their own to the backend, which sees one address for all.
func TestClientsOffTheNodeThatShareAPortStayApart(t *testing.T) {
	s := onStage(t, options{})
	second := s.outsider(lab.OutsideOptions{Name: "second"})
	of := s.next()
	s.serve(of, ready(s.far)...)
	const port = 20000
	for _, w := range ways() {
		seen := map[string]bool{}
		var conns []*lab.Conn
		for _, client := range []host{s.outside, second} {
			for _, kind := range frontends() {
				conns = append(conns, dial(t, client, w.network, s.by(of, kind).address(w.six), port))
			}
		}
		for _, conn := range conns {
			answer, err := conn.Who()
			if err != nil {
				t.Fatalf("%s from %s to %s: %v", w, conn.Local(), conn.Remote(), err)
			}
			seen[answer.Client.String()] = true
		}
		if len(seen) != len(conns) {
			t.Errorf("%s: %d connections are %d to the backend: %v", w, len(conns), len(seen), seen)
		}
	}
}

// Without forwarding a node takes nothing from off the node to a backend: the counters and `nearlb check` say why.
func TestANodeThatDoesNotForwardSaysSo(t *testing.T) {
	s := newStage(t, options{alone: true})
	of := s.next()
	s.serve(of, ready(s.far)...)
	if err := s.here.Sysctl("ipv4/ip_forward=0", "ipv6/conf/all/forwarding=0"); err != nil {
		t.Fatal(err)
	}
	s.mayDrop("drop_forwarding_off")
	for _, w := range ways() {
		if answer, err := s.by(of, nodePort).inVain(s.outside, w); err == nil {
			t.Errorf("%s is forwarded all the same: %+v", w, answer)
		}
	}
	s.awaitVerdict(0, "drop_forwarding_off")
	said := s.run("check")
	for _, want := range []string{"net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"} {
		if !strings.Contains(said, want) {
			t.Errorf("check does not name %s:\n%s", want, said)
		}
	}
}

// run runs a command of nearlb on the first node and gives what it prints.
func (s *stage) run(command ...string) string {
	s.t.Helper()
	name := fmt.Sprintf("command-%d", s.commands.Add(1))
	p, err := s.here.Start(name, append([]string{"/proc/self/exe"}, command...), runAsCLI+"=1")
	if err != nil {
		s.t.Fatal(err)
	}
	defer os.Remove(p.Log) // a test that fails prints what is left in logs
	<-p.Ended()
	said, err := os.ReadFile(p.Log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(said)
}

// A node's addresses outside of --nodeport-addresses are its own: who asks there for a NodePort finds nobody.
func TestNodePortsAnswerOnTheSelectedAddressesAlone(t *testing.T) {
	s := newStage(t, options{alone: true, agent: []string{"--nodeport-addresses", "172.31.0.0/16,fd31::/16"}})
	of := s.next()
	s.serve(of, ready(s.far)...)
	others := []netip.Addr{netip.MustParseAddr("198.51.100.200"), netip.MustParseAddr("2001:db8:1::200")}
	if err := s.here.Own(others...); err != nil {
		t.Fatal(err)
	}
	for _, client := range []host{s.outside, s.pod} {
		s.only(client, of, []frontend{nodePort}, s.far)
		for _, w := range ways() {
			to := netip.AddrPortFrom(others[map[bool]int{false: 0, true: 1}[w.six]], of.nodePort())
			answer, err := client.Ask(context.Background(), w.network, to, lab.DialOptions{})
			if !refused(answer, err) {
				t.Errorf("%s asks %s over %s: %+v, %v; want the node to refuse", client, to, w, answer, err)
			}
		}
	}
}

// --socket-lb=all: pods' sockets pick their backend as they connect; what everybody sees stays as it is.
func TestPodsSocketsMayPickTheirBackendsThemselves(t *testing.T) {
	s := onStage(t, options{agent: []string{"--socket-lb", "all"}})
	checkMatrix(t, s)
}
