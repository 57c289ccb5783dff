// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// met are peers that know n1, which is this node, and n2, which answers or does not.
func met(t *testing.T, answers bool) (p *tunnelPeers, nodes map[string][]netip.Addr) {
	t.Helper()
	nodes = map[string][]netip.Addr{"n1": {netip.MustParseAddr("192.0.2.1")}, "n2": {netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}}
	p = newTunnelPeers(6091, "")
	p.meet(nodes, time.Now())
	if answers && !p.spoke(nodes["n2"][0]) {
		t.Fatal("its first answer is no news")
	}
	return p, nodes
}

// hears wants it known whether n2 was heard.
func hears(t *testing.T, p *tunnelPeers, nodes map[string][]netip.Addr, want bool, when string) {
	t.Helper()
	if got := p.heard("n2", nodes["n2"]); got != want {
		t.Errorf("%s: heard %v, want %v", when, got, want)
	}
}

// A node is heard from its first answer on, for a day after the last one, for as long as it is there and has its address; programs are told of
// each turn.
func TestANodeIsHeardForADayAfterItsLastAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, nodes := met(t, false)
		turns := func(want bool, when string) {
			t.Helper()
			if got := p.judge(nodes["n1"], nil, "n1", time.Now()); got != want {
				t.Errorf("%s: told %v, want %v", when, got, want)
			}
		}
		hears(t, p, nodes, false, "before it answered")
		turns(false, "before it answered")
		if p.spoke(netip.MustParseAddr("192.0.2.3")) || !p.spoke(nodes["n2"][1]) || p.spoke(nodes["n2"][0]) {
			t.Error("an answer of nobody, or a second one, is news")
		}
		hears(t, p, nodes, true, "once it answered")
		turns(true, "once it answered")
		turns(false, "later")
		time.Sleep(heardFor)
		p.meet(nodes, time.Now())
		hears(t, p, nodes, true, "after a day")
		time.Sleep(time.Second)
		p.meet(nodes, time.Now())
		hears(t, p, nodes, false, "after more than a day")
		turns(true, "after more than a day")
	})
}

// A Node that is deleted and made again under its name, on another machine, is another one.
func TestANodeWithAnotherAddressIsUnheard(t *testing.T) {
	p, nodes := met(t, true)
	moved := map[string][]netip.Addr{"n1": nodes["n1"], "n2": {netip.MustParseAddr("192.0.2.9")}}
	hears(t, p, moved, false, "before the change is looked at")
	p.meet(moved, time.Now())
	hears(t, p, moved, false, "with another address")
	p.meet(nodes, time.Now())
	hears(t, p, nodes, false, "with its first address once more")
	p.spoke(nodes["n2"][0])
	delete(nodes, "n2")
	p.meet(nodes, time.Now())
	nodes["n2"] = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	p.meet(nodes, time.Now())
	hears(t, p, nodes, false, "deleted and made again")
}

// An object of a machine that got another name may be left behind: whoever answers at the address is heard by both names, as packets from there may
// be taken for either's.
func TestNodesWithOneAddressAreHeardTogether(t *testing.T) {
	p, nodes := met(t, false)
	nodes["n3"] = nodes["n2"]
	p.meet(nodes, time.Now())
	if !p.spoke(nodes["n2"][0]) || p.spoke(nodes["n2"][0]) {
		t.Error("the first answer is no news, or the second one is")
	}
	for _, name := range []string{"n2", "n3"} {
		if !p.heard(name, nodes[name]) {
			t.Errorf("%s is not heard", name)
		}
	}
}

// What tables say counts for the next agent: who was heard is, and who was not, is not; and it asks all of them. Rows of agents that knew nothing
// of it say that all were heard, so that an upgrade refuses nobody. Of another port they say nothing.
func TestARestartKnowsWhoWasHeard(t *testing.T) {
	for port, want := range map[uint16]bool{6091: true, 6092: false} {
		_, nodes := met(t, false)
		nodes["n3"] = []netip.Addr{netip.MustParseAddr("192.0.2.3")}
		p := newTunnelPeers(port, "")
		p.remember(tables.Tunnel{Port: 6091, Nodes: map[string]tables.TunnelNode{"n2": {Addresses: nodes["n2"]}, "n3": {Addresses: nodes["n3"], Unheard: true}}})
		p.meet(nodes, time.Now())
		hears(t, p, nodes, want, "after a restart")
		if p.heard("n3", nodes["n3"]) {
			t.Error("n3 was not heard, and is after a restart")
		}
		if due := p.due(nodes, "n1", time.Now()); len(due) != 2 {
			t.Errorf("asks %v, want both others", due)
		}
	}
}

// Who does not answer is asked ever more rarely, once a minute in the end, and who did twice a day.
func TestNodesThatAreOnlyToBeHeardAreAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := func(answers bool, d time.Duration) (n int) {
			p, nodes := met(t, answers)
			for range d / helloEvery {
				p.meet(nodes, time.Now())
				due := p.due(nodes, "n1", time.Now())
				if n += len(due); len(due) > 0 && answers {
					p.spoke(nodes["n2"][0])
				}
				time.Sleep(helloEvery)
			}
			return n
		}
		if n := asked(false, time.Hour); n < 60 || n > 66 {
			t.Errorf("asked %d times in an hour, want one a minute after the first", n)
		}
		if n := asked(true, 4*heardFor); n < 7 || n > 8 {
			t.Errorf("asked %d times in four days though it answers", n)
		}
	})
}

// A node that has a tunnel and sends nothing into it hears the others: theirs would be refused for ever.
func TestANodeThatSendsNothingThroughItsTunnelHearsTheOthers(t *testing.T) {
	node, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	port := uint16(node.LocalAddr().(*net.UDPAddr).Port)
	b := newBench(t, newScripted(), newWitnessed())
	defer b.stop()
	b.source.nodes = map[string][]netip.Addr{"n1": {netip.MustParseAddr("127.0.0.1")}, "n2": {netip.MustParseAddr("127.0.0.2")}}
	b.source.node.Addresses = b.source.nodes["n1"]
	b.offNode, b.tunnelPort, b.peers = lb.OffNodeSNAT, port, newTunnelPeers(port, "")
	r := &running{loop: b.loop, warm: true, daemon: &daemon{source: b.source, peers: b.peers, log: b.log, diary: b.diary, options: Options{NodeName: "n1", OffNode: lb.OffNodeSNAT}}}
	b.Synced()
	<-b.first
	if told := b.tunnel().Nodes["n2"]; !told.Unheard || told.Carries {
		t.Errorf("before it answered the programs are told %+v", told)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.followTunnel(ctx) }()
	buffer := make([]byte, helloMost)
	if err := node.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	n, from, err := node.ReadFromUDPAddrPort(buffer)
	if err != nil {
		t.Fatal("nobody asks: ", err)
	}
	buffer[6] = helloAnswer
	if _, err := node.WriteToUDPAddrPort(buffer[:n], from); err != nil {
		t.Fatal(err)
	}
	if err := lab.Await(time.Minute, func() bool { return !b.tunnel().Nodes["n2"].Unheard }); err != nil {
		t.Fatal("it answered, and is not heard: ", err)
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if told := b.tunnel().Nodes["n2"]; told.Unheard || told.Carries {
		t.Errorf("once it answered the programs are told %+v, want a node that is heard, and that nothing goes to", told)
	}
}
