// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// A node is one that carries for as long as it answers on each family that both have; what nobody was asked for is no answer.
func TestANodeCarriesWhileItAnswers(t *testing.T) {
	node, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	p := newTunnelPeers(uint16(node.LocalAddr().(*net.UDPAddr).Port), "")
	defer p.close()
	own := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	nodes := map[string][]netip.Addr{"n1": own, "n2": {netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("fd00::2")}}
	news := make(chan struct{}, 9)
	features := byte(0)
	ask := func() []byte {
		t.Helper()
		questions, err := p.questions(own, nodes, "n1", func(s *net.UDPConn) { go p.hear(s, func() { news <- struct{}{} }) })
		if err != nil {
			t.Fatal(err)
		}
		p.ask(questions)
		buffer := make([]byte, 64)
		n, from, err := node.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatal(err)
		}
		for _, wrong := range [][]byte{buffer[:n], buffer[:n-1], append([]byte{0, helloFlags, 0, 0, 0, 0, helloAnswer, 0}, 1, 2, 3, 4, 5, 6, 7, 8)} {
			if _, err := node.WriteToUDPAddrPort(wrong, from); err != nil {
				t.Fatal(err)
			}
		}
		buffer[6], buffer[7] = helloAnswer, features
		if _, err := node.WriteToUDPAddrPort(buffer[:n], from); err != nil {
			t.Fatal(err)
		}
		return buffer[:n]
	}
	if p.judge(own, nodes, "n1", time.Now()) || p.takes("n2").carries {
		t.Error("carries before it was asked")
	}
	features = helloDirect
	ask()
	<-news
	if !p.judge(own, nodes, "n1", time.Now()) || p.takes("n2") != (ability{true, true}) || p.takes("n1").carries {
		t.Error("does not carry though it answered")
	}
	features = 0
	ask()
	<-news
	if !p.judge(own, nodes, "n1", time.Now()) || p.takes("n2") != (ability{carries: true}) {
		t.Errorf("an older node, which answers clients through this one, is told as %+v", p.takes("n2"))
	}
	for _, features = range []byte{helloDirect | helloNoWay, helloDirect} {
		ask()
		<-news
		if carries := features&helloNoWay == 0; !p.judge(own, nodes, "n1", time.Now()) || p.takes("n2") != (ability{carries, carries}) {
			t.Errorf("a node that answers %d is told as %+v", features, p.takes("n2"))
		}
	}
	if both := append(own, netip.MustParseAddr("fd00::1")); !p.judge(both, nodes, "n1", time.Now()) || p.takes("n2").carries {
		t.Error("carries though it did not answer on both families")
	}
	p.judge(own, nodes, "n1", time.Now())
	if !p.judge(own, nodes, "n1", time.Now().Add(lostAfter(2)+time.Second)) || p.takes("n2").carries {
		t.Error("carries though its answer is old")
	}
	if len(p.answered) > 0 {
		t.Errorf("answers are remembered for ever: %v", p.answered)
	}
	if len(news) > 0 {
		t.Error("wrong answers count")
	}
}

// The time in which this agent stood still counts for no node's silence, and what was heard at its end counts as of then.
func TestTimeInWhichAnAgentStoodStillSaysNothingOfNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		nodes := map[string][]netip.Addr{"n1": own, "n2": {netip.MustParseAddr("192.0.2.2")}, "n3": {netip.MustParseAddr("192.0.2.3")}}
		p := newTunnelPeers(6091, "")
		answers := func(name string) { p.answered[netip.AddrPortFrom(nodes[name][0], 6091)] = lastAnswer{at: time.Now()} }
		carries := func(when string, want ...string) {
			t.Helper()
			p.goesOn(time.Now(), len(nodes))
			p.judge(own, nodes, "n1", time.Now())
			if got := slices.Sorted(maps.Keys(p.able)); !slices.Equal(got, want) {
				t.Fatalf("%s: carries to %v, want %v", when, got, want)
			}
		}
		answers("n2")
		answers("n3")
		carries("once they answered", "n2", "n3")
		time.Sleep(5 * time.Minute)
		answers("n3") // it is read before anything else is done
		carries("after it stood still", "n2", "n3")
		for range lostAfter(len(nodes)) / (helloEvery / helloParts) {
			time.Sleep(helloEvery / helloParts)
			carries("while they have the time to answer", "n2", "n3")
		}
		time.Sleep(helloEvery / helloParts)
		carries("after that")
	})
}

// An agent that was stopped for longer than nodes may be silent carries on to those that answered: it asks them before it judges.
func TestAnAgentThatWasStoppedCarriesToWhoAnsweredBefore(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("eth0")
		m.address("eth0", "192.0.2.1/24")
		m.address("eth0", "192.0.2.2/24")
		node, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: DefaultCarryPort})
		m.must(err)
		defer node.Close()
		answers, asked := atomic.Bool{}, make(chan struct{}, 1)
		answers.Store(true)
		go func() {
			for buffer := make([]byte, helloMost); ; {
				n, from, err := node.ReadFromUDPAddrPort(buffer)
				if err != nil {
					return
				}
				if buffer[6] = helloAnswer; answers.Load() {
					_, _ = node.WriteToUDPAddrPort(buffer[:n], from)
				}
				select {
				case asked <- struct{}{}:
				default:
				}
			}
		}()
		m.manifest("nodes.yaml", `{apiVersion: v1, kind: Node, metadata: {name: n1}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2}, status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}}
`)
		agent := m.agent(func(o *Options) { unbounded(o); o.OffNode = lb.OffNodeCarry })
		agent.await("a node that answers", func(s Status) bool { return s.Tunnel != nil && s.Tunnel.Answer == 1 })
		m.must(lab.Await(patience, func() bool { return m.carries() == 1 }))
		m.must(agent.cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(lostAfter(2) + helloEvery) // it takes as long as that to be lost
		answers.Store(false)
		for len(asked) > 0 {
			<-asked
		}
		m.must(agent.cmd.Process.Signal(syscall.SIGCONT))
		<-asked
		if n := m.carries(); n != 1 {
			m.Errorf("it carries to %d nodes before any had the time to answer", n)
		}
		m.must(lab.Await(patience, func() bool { return m.carries() == 0 }))
		m.must(agent.end(syscall.SIGTERM))
	})
}

// carries is to how many nodes new connections go through the tunnel.
func (m *machine) carries() (n int) {
	m.Helper()
	tables, err := bpf.OpenMaps(m.options.PinPath, true)
	m.must(err)
	defer tables.Close()
	var number uint32
	var row bpf.NearlbTunnelNode
	rows := tables.TunnelNodes.Iterate()
	for rows.Next(&number, &row) {
		n += int(row.Carries)
	}
	m.must(rows.Err())
	return n
}

// A node that a policy of IPsec is for is not carried to, whatever it answers, until the policy is gone.
func TestNothingIsCarriedPastAPolicyOfIPsec(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		p := newTunnelPeers(6091, "")
		own, nodes := []netip.Addr{netip.MustParseAddr("192.0.2.1")}, map[string][]netip.Addr{}
		for i, name := range []string{"n1", "n2", "n3"} {
			nodes[name] = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}
			p.answered[netip.AddrPortFrom(nodes[name][0], 6091)] = lastAnswer{at: time.Now(), direct: true}
		}
		for _, row := range []struct {
			command string
			sealed  []string
		}{
			{"add dir out src 192.0.2.1 dst 192.0.2.2 tmpl proto esp mode transport", []string{"n2"}},
			{"add dir out src 192.0.2.0/24 dst 192.0.2.0/24 action block", []string{"n2", "n3"}},
			{"flush", []string{}},
		} {
			if out, err := exec.Command("sh", "-c", "ip xfrm policy "+row.command).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			policies, err := bypass.ReadPolicies()
			if err != nil {
				t.Fatal(err)
			}
			p.heed(policies)
			p.judge(own, nodes, "n1", time.Now())
			s := p.status(lb.OffNodeCarry, true, nodes, "n1")
			if !slices.Equal(s.Sealed, row.sealed) || !slices.Equal(s.Silent, row.sealed) || s.Answer != 2-len(row.sealed) {
				t.Errorf("after %s: %+v", row.command, s)
			}
		}
	})
}

// What an earlier agent wrote counts until nodes had the time to answer this one: datagrams that are carried stay in the tunnel. Of another port
// it says nothing.
func TestAnswersToAnEarlierAgentCountUntilNodesAreAsked(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	nodes := map[string][]netip.Addr{"n1": own, "n2": {netip.MustParseAddr("127.0.0.2")}, "n3": {netip.MustParseAddr("127.0.0.3")}}
	was := tables.Tunnel{Port: 6091, Nodes: map[string]tables.TunnelNode{"n2": {Addresses: nodes["n2"], Carries: true}, "n3": {Addresses: nodes["n3"]}}}
	for port, want := range map[uint16]bool{6091: true, 6092: false} {
		p := newTunnelPeers(port, "")
		p.remember(was)
		if p.takes("n2").carries != want || p.takes("n3").carries {
			t.Errorf("port %d: n2 carries: %v, n3: %v", port, p.takes("n2").carries, p.takes("n3").carries)
		}
		if p.judge(own, nodes, "n1", time.Now()) || p.takes("n2").carries != want {
			t.Errorf("port %d: changed before a node could answer", port)
		}
		if p.judge(own, nodes, "n1", time.Now().Add(lostAfter(len(nodes))+time.Second)); p.takes("n2").carries {
			t.Errorf("port %d: carries though it never answered this agent", port)
		}
	}
}

// An agent that starts where only a Service asks for the tunnel asks all nodes before it has read any, and keeps what an earlier one wrote of them
// until they had the time to answer, however long the list takes.
func TestAfterARestartCarriedDatagramsStayInATunnelThatAServiceAsksFor(t *testing.T) {
	node, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	port := uint16(node.LocalAddr().(*net.UDPAddr).Port)
	nodes := map[string][]netip.Addr{"n1": {netip.MustParseAddr("127.0.0.1")}, "n2": {netip.MustParseAddr("127.0.0.2")}}
	in := input(1, 1)
	in.Service.OffNode = lb.OffNodeCarry
	b := newBench(t, newScripted(), newWitnessed())
	defer b.stop()
	b.source.set(0, 1) // is published first
	b.source.put(in)
	b.source.node.Addresses = nodes["n1"]
	b.tables.block = make(chan struct{})
	b.offNode, b.tunnelPort, b.peers = lb.OffNodeSNAT, port, newTunnelPeers(port, "")
	b.peers.remember(tables.Tunnel{Port: port, Nodes: map[string]tables.TunnelNode{"n2": {Addresses: nodes["n2"], Carries: true}}})
	for at := range b.peers.answered {
		b.peers.answered[at] = lastAnswer{at: time.Now().Add(-time.Hour)}
	}
	r := &running{loop: b.loop, warm: true, daemon: &daemon{source: b.source, peers: b.peers, log: b.log, diary: b.diary, options: Options{NodeName: "n1", OffNode: lb.OffNodeSNAT}}}
	before, cancel := context.WithTimeout(t.Context(), 3*helloEvery/helloParts)
	defer cancel()
	if err := r.followTunnel(before); err != nil || !b.peers.takes("n2").carries {
		t.Fatalf("before nodes are listed it carries: %v, %v", b.peers.takes("n2").carries, err)
	}
	b.source.mu.Lock()
	b.source.nodes = nodes
	b.source.mu.Unlock()
	ctx, end := context.WithCancel(t.Context())
	ended, began := make(chan error), time.Now()
	b.Synced()
	go func() { ended <- r.followTunnel(ctx) }()
	for _, published := range []bool{false, true} {
		if published {
			close(b.tables.block)
			<-b.first
		}
		if err := node.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := node.ReadFromUDPAddrPort(make([]byte, helloMost)); err != nil {
			t.Errorf("published %v: nobody asks: %v", published, err)
		}
		if !b.peers.takes("n2").carries && time.Since(began) < lostAfter(len(nodes)) {
			t.Errorf("published %v: it does not carry, before it had the time to answer", published)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A Service that asks for the tunnel of an agent that has none is told of, until it asks no more, and when it is gone.
func TestAServiceThatAsksForATunnelThatIsNotThereIsTold(t *testing.T) {
	inBubble(t, func(b *bench) {
		name := b.source.set(1, 1)
		asks := func(way lb.OffNode) {
			in := input(1, 1)
			in.Service.OffNode = way
			b.source.put(in)
			b.ServiceChanged(name)
			b.after(time.Minute)
		}
		told := func(want int, direct bool) {
			t.Helper()
			all := b.ways.problems()
			if len(all) != want || want > 0 && (all[0].Object != name.Object() || !strings.Contains(all[0].Field, "nearlb.io/off-node")) {
				t.Errorf("problems %+v, want %d", all, want)
			}
			if b.ways.anyDirect() != direct || b.ways.anyTunneled() != (want > 0) {
				t.Errorf("dsr is asked for: %v; a tunnel: %v", b.ways.anyDirect(), b.ways.anyTunneled())
			}
		}
		b.Synced()
		b.settle()
		told(0, false)
		asks(lb.OffNodeDSR)
		told(1, true)
		asks(lb.OffNodeSNAT)
		told(0, false)
		asks(lb.OffNodeCarry)
		told(1, false)
		b.source.remove(name)
		b.ServiceChanged(name)
		b.after(time.Minute)
		told(0, false)
	})
}

// Who cannot answer clients is named where somebody asks for that.
func TestTheStatusNamesWhoCannotAnswerClientsWhereThatIsAskedFor(t *testing.T) {
	p := newTunnelPeers(6091, "")
	p.able = map[string]ability{"n2": {carries: true}, "n3": {carries: true, direct: true}}
	nodes := map[string][]netip.Addr{"n1": nil, "n2": nil, "n3": nil}
	for direct, want := range map[bool][]string{false: {}, true: {"n2"}} {
		if s := p.status(lb.OffNodeCarry, direct, nodes, "n1"); !slices.Equal(s.Through, want) || s.Answer != 2 {
			t.Errorf("asked for: %v: %+v, want %v", direct, s, want)
		}
	}
}
