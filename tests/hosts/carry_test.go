// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"golang.org/x/sync/errgroup"
)

// E4, --off-node=carry: what must work works, on every kind of network, and a backend on another node sees the client's own address.
func TestTheTunnelOnEveryNetwork(t *testing.T) {
	all := networks()
	all["routed, past the stack"] = options{agent: []string{"--shortcut", "on"}}
	for name, o := range all {
		t.Run(name, func(t *testing.T) {
			o, key := carrying(t, o)
			s := stageFor(t, o, o.agent[0] == "--off-node") // without flags of its own, another test has that network
			s.awaitCarried()
			if key != "" {
				s.part("a key comes and changes under load from off the node", func(t *testing.T, s *stage) { checkKeyChanges(t, s, key) })
			}
			s.part("every client and frontend and backend", checkMatrix)
			s.part("backends on nodes' own addresses answer everybody", checkNodeBackends)
			s.part("another node's port answers", checkOtherNodesPort)
			s.part("nearlb trace says what backends see", checkTrace)
			s.part("big transfers from off the node arrive whole", checkTransfersFromOutside)
			s.part("datagrams sent as segments arrive whole", checkSegments)
			s.part("an agent killed under load from off the node loses no connection", checkKilledAgent)
		})
	}
}

// carrying has agents carry. The nodes of one network share a key, whose file is returned. Where nodes may answer by themselves, too, a Service
// may ask for that.
func carrying(t *testing.T, o options) (with options, key string) {
	t.Helper()
	o.agent, o.carries, o.direct = append(o.agent, "--off-node", "carry"), true, o.lab != lab.Options{}
	if o.lab.MTU > 1500 {
		key = keyFile(t, "changes")
		o.agent = append(o.agent, "--tunnel-key-file", key)
	}
	return o, key
}

// shareKeys puts keys in the place of those before, as a Secret's volume changes.
func shareKeys(t *testing.T, path string, keys ...string) {
	t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// Each step is taken by the nodes one after the other; none costs a connection or a packet. At the end nobody is a node without the last key.
func checkKeyChanges(t *testing.T, s *stage, path string) {
	const first, second = "the first key of all", "another key, later"
	of := s.next()
	s.serve(of, ready(s.far)...)
	asked := s.by(of, loadBalancer)
	l := asked.startLoad(s.outside, s.here)
	asked.more(l, some)
	cookies := func(node int) (now maps.Cookies) {
		s.read(node, func(r *maps.Reader) error {
			_, now, _ = r.Tunnel()
			return nil
		})
		return now
	}
	all := [][]string{{"none", first}, {first, "none"}, {first}, {first, second}, {second, first}, {second}}
	if cookies(0).Required() { // since a run before
		all = append([][]string{{second, "none"}, {"none", second}, {"none"}}, all...)
	}
	for _, keys := range all {
		before := cookies(0)
		shareKeys(t, path, keys...)
		s.await("both nodes have the keys", func() bool { return cookies(0) != before && cookies(0) == cookies(1) })
		asked.more(l, some)
	}
	l.end(t)
	if !cookies(0).Required() {
		t.Errorf("packets without a cookie are taken: %+v", cookies(0))
	}
	for node := range 2 {
		if n := s.verdicts(node)["drop_tunnel_cookie"]; n > 0 {
			t.Errorf("node %d dropped %d packets for their cookies", node+1, n)
		}
	}
	s.awaitCarried()
}

// --off-node=dsr, and a Service's annotation where agents carry: the same, and what the backend's node sends does not come by the first one.
func TestAnswersLeaveTheBackendsNodeOnEveryNetwork(t *testing.T) {
	all := networks()
	delete(all, "routed, as clsact filters") // by which filters programs attach changes no answer's way: TestTheTunnelOnEveryNetwork has it
	for name, o := range all {
		t.Run(name, func(t *testing.T) {
			own := lb.OffNodeDSR
			if name == "routed" { // another test has that network
				o.agent, o.carries, o.direct, own = []string{"--off-node", "dsr"}, true, true, ""
			} else {
				o, _ = carrying(t, o)
			}
			s := stageFor(t, o, true)
			s.own = own
			s.awaitCarried()
			s.part("every client and frontend and backend", checkMatrix)
			s.part("backends on nodes' own addresses answer everybody", checkNodeBackends)
			s.part("another node's port answers", checkOtherNodesPort)
			s.part("big transfers from off the node arrive whole", checkTransfersFromOutside)
			s.part("datagrams sent as segments arrive whole", checkSegments)
			s.part("nearlb trace says what backends see", checkTrace)
			s.part("answers pass the first node by", checkDirectAnswers)
			s.part("an agent killed under load from off the node loses no connection", checkKilledAgent)
		})
	}
}

// The first node sees what opens a connection, and nothing of what is sent on it.
func checkDirectAnswers(t *testing.T, s *stage) {
	of := s.next()
	s.serve(of, ready(s.far)...)
	const length = 4 * megabyte
	asked := uint64(0)
	for _, six := range []bool{false, true} {
		if !s.carries(six) {
			continue
		}
		asked += length
		if err := s.by(of, loadBalancer).dial(s.outside, way{"tcp", six}).Get(1, length); err != nil {
			t.Fatal(err)
		}
	}
	first, second := s.bytesFrom(0, of), s.bytesFrom(1, of)
	if first == 0 || first > length/100 || second < asked {
		t.Errorf("the server sent %d bytes by the first node, %d by its own", first, second)
	}
}

// bytesFrom is what a node has counted of the Service's answers.
func (s *stage) bytesFrom(node int, of *service) (bytes uint64) {
	s.t.Helper()
	s.read(node, func(r *maps.Reader) error {
		for row, err := range r.BackendsOf(of.owns) {
			if err != nil {
				return err
			}
			bytes += row.BytesFrom
		}
		return nil
	})
	return bytes
}

// awaitCarried waits until connections from off the node keep their address: both nodes are known, and carry.
func (s *stage) awaitCarried() {
	s.t.Helper()
	of := s.next()
	s.serve(of, ready(s.far)...)
	for _, w := range ways() {
		if !s.carries(w.six) {
			continue
		}
		s.await("connections over "+w.String()+" go through the tunnel", func() bool {
			conn, err := s.outside.Dial(context.Background(), w.network, s.by(of, loadBalancer).address(w.six), lab.DialOptions{LocalPort: s.port()})
			if err != nil {
				return false
			}
			defer conn.Close()
			answer, err := conn.Who()
			return err == nil && answer.Client == conn.Local()
		})
	}
}

// Segments as large as the kernel makes them, both ways. Their SYNs told both ends what fits the tunnel.
func checkTransfersFromOutside(t *testing.T, s *stage) {
	var transfers errgroup.Group
	for _, backend := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(of, ready(backend)...)
		for _, six := range []bool{false, true} {
			conn := s.by(of, nodePort).dial(s.outside, way{"tcp", six})
			transfers.Go(func() error { return transfer(conn, 16*megabyte) })
		}
	}
	if err := transfers.Wait(); err != nil {
		t.Error(err)
	}
}

// What the programs send passes policies of IPsec by: nothing new is carried to a node that one is for. This one is for a port that nobody sends to,
// so that it stops nobody, and may be for the tunnel's as well as far as the agent knows.
func TestNothingIsCarriedToANodeThatAPolicyOfIPsecIsFor(t *testing.T) {
	o, _ := carrying(t, options{})
	s := onStage(t, o)
	s.awaitCarried()
	of := s.next()
	s.serve(of, ready(s.far)...)
	policies := func(command string) {
		for _, six := range []bool{false, true} {
			s.shellAt(s.here.Namespace, fmt.Sprintf(command, s.here.Address(six), s.far.Node.Address(six)))
		}
	}
	policies("ip xfrm policy add src %s dst %s proto udp dport 9 dir out tmpl proto esp mode transport")
	defer func() {
		policies("ip xfrm policy delete src %s dst %s proto udp dport 9 dir out")
		s.awaitCarried()
	}()
	for _, w := range ways() {
		var answer lab.Answer
		s.await("connections over "+w.String()+" go by SNAT", func() bool {
			conn, err := s.outside.Dial(context.Background(), w.network, s.by(of, loadBalancer).address(w.six), lab.DialOptions{LocalPort: s.port()})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if answer, err = conn.Who(); err != nil {
				t.Fatal(err)
			}
			return answer.Client.Addr() != s.outside.Address(w.six)
		})
	}
	s.await("status says so", func() bool {
		status, err := agent.ReadStatus(s.LockDir(), s.here.PinPath())
		return err == nil && slices.Equal(status.Tunnel.Sealed, []string{s.far.Node.Name}) && slices.Equal(status.Tunnel.Silent, status.Tunnel.Sealed)
	})
}

// The backend's node is behind two uplinks, each with a strict reverse path filter: other nodes by one, and clients off the node by the other.
// What the tunnel brings by the first passes the filter of the second.
func TestTheTunnelComesByAnotherDeviceThanItsClientsAreBehind(t *testing.T) {
	for name, o := range map[string]options{
		"carry":          {agent: []string{"--off-node", "carry"}, carries: true},
		"carry, at XDP":  {agent: []string{"--off-node", "carry", "--xdp", "native"}, carries: true, lab: lab.Options{XDP: true}},
		"past the stack": {agent: []string{"--off-node", "carry", "--shortcut", "on"}, carries: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, o)
			s.awaitCarried()
			checkTransfersFromOutside(t, s)
			of := s.next()
			s.serve(of, ready(s.far)...)
			before := map[bool]*lab.Conn{}
			for _, six := range []bool{false, true} {
				before[six] = s.by(of, loadBalancer).dial(s.outside, way{"tcp", six})
			}
			s.addUplink(s.far.Node)
			for six, conn := range before {
				if answer, err := conn.Who(); err != nil || answer.Client != conn.Local() {
					t.Errorf("a connection from before, six %v: %+v, %v", six, answer, err)
				}
			}
			for range 2 {
				s.awaitCarried()
				checkTransfersFromOutside(t, s)
			}
		})
	}
}

// addUplink gives the node a second way to the router, which leads to clients off every node; only what comes from there may come by it, and nothing
// of it by the other one.
func (s *stage) addUplink(n *lab.Node) {
	s.t.Helper()
	s.shellAt(s.Router, fmt.Sprintf(`ip link add second type veth peer name second netns %s
ip address add 172.30.0.1/24 dev second; ip address add fd00:30::1/64 dev second; ip link set second up`, n.Path()))
	s.shellAt(n.Namespace, fmt.Sprintf(`ip address add 172.30.0.2/24 dev second; ip address add fd00:30::2/64 dev second; ip link set second up
ip route add default via 172.30.0.1 dev second metric 9; ip -6 route add default via fd00:30::1 dev second metric 9999
ip route add %s via 172.30.0.1 dev second; ip -6 route add %s via fd00:30::1 dev second`, s.outside.V4, s.outside.V6))
	if err := n.Netfilter(fmt.Sprintf(`table ip6 strict {
	chain prerouting { type filter hook prerouting priority raw; ip6 saddr %s fib saddr . iif oif missing drop; }
}`, s.outside.V6)); err != nil {
		s.t.Fatal(err)
	}
	s.await("the agent knows the second uplink", func() bool {
		status, err := agent.ReadStatus(s.LockDir(), n.PinPath())
		return err == nil && slices.ContainsFunc(status.Devices, func(d attach.DeviceRow) bool {
			return d.Device == "second" && d.Program == "from_net" && d.Method != ""
		})
	})
}
