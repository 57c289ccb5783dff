// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// A tunnel that is turned off takes nothing new, and is there until a walk through the flow table finds no connection of it that began after all
// connections were carried over from other tables.
func TestATunnelThatIsTurnedOffEndsWithItsLastConnection(t *testing.T) {
	inBubble(t, func(b *bench) {
		var carried atomic.Bool
		b.source.nodes = map[string][]netip.Addr{"n1": {netip.MustParseAddr("192.0.2.1")}, "n2": {netip.MustParseAddr("192.0.2.2")}}
		b.offNode, b.peers, b.tunnelPort = lb.OffNodeSNAT, newTunnelPeers(6091, ""), 6091
		b.peers.cookies = maps.Cookies{Asked: true, Sent: 7, Accepted: [2]uint64{7, 7}}
		b.leaving, b.carriedOver = &leavingTunnel{port: 6091}, carried.Load
		b.peers.meet(b.source.nodes, b.loop.started)
		b.peers.spoke(b.source.nodes["n2"][0])
		b.tables.tunneled.Store(1)
		in := input(1, 1)
		in.Service.OffNode = lb.OffNodeCarry
		b.source.put(in)
		walk := func() { b.after(2 * sweepEvery * 3) } // pieces are those of witnessed
		is := func(want bool, when string) {
			t.Helper()
			c, err := b.tables.Config()
			if err != nil {
				t.Fatal(err)
			}
			n2 := c.Tunnel.Nodes["n2"]
			if there := c.Tunnel.Port != 0; there != want || want && (!c.Tunnel.Leaving || n2.Carries || n2.Direct || !n2.Unheard || c.Tunnel.Cookies.Sent != 7) {
				t.Errorf("%s: the tunnel is %+v", when, c.Tunnel)
			}
		}
		b.Synced()
		b.settle()
		is(true, "at first")
		if len(b.ways.problems()) != 1 {
			t.Error("a Service that asks for it is no problem")
		}
		walk()
		is(true, "other tables have connections")
		carried.Store(true)
		walk()
		is(true, "a connection is there")
		b.tables.tunneled.Store(0)
		walk()
		is(false, "no connection is there")
	})
}

// An agent finds the tunnel that an earlier one had, with its cookies though there is no file of keys any more; one that has a reason for a tunnel
// has its own.
func TestAnAgentWithoutATunnelKeepsThatOfAnEarlierOneForItsConnections(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("pod1")
		m.manifest("web.yaml", web)
		key := filepath.Join(t.TempDir(), "key")
		m.must(os.WriteFile(key, []byte(oneKey), 0o600))
		first := m.agent(func(o *Options) { o.OffNode, o.TunnelKeyFile, o.Heartbeats = lb.OffNodeCarry, key, lb.EjectionOff })
		if s := first.serving(2); s.Tunnel == nil || s.Tunnel.Leaving {
			t.Errorf("the tunnel is %+v", s.Tunnel)
		}
		m.must(first.end(syscall.SIGTERM))
		before, err := bpf.PinnedTunnel(m.options.PinPath)
		m.must(err)
		second := m.agent(nil)
		s := second.await("leaving", func(s Status) bool { return s.Tunnel != nil && s.Tunnel.Leaving })
		second.serving(2)
		before.Leaving = 1
		if now, err := bpf.PinnedTunnel(m.options.PinPath); err != nil || now != before || s.Tunnel.Cookie != CookieOn {
			t.Errorf("the tunnel is %+v, want %+v; %v; the status is %+v", now, before, err, s.Tunnel)
		}
		m.must(second.end(syscall.SIGTERM))
		third := m.agent(func(o *Options) { o.OffNode = lb.OffNodeCarry })
		if s := third.serving(2); s.Tunnel == nil || s.Tunnel.Leaving {
			t.Errorf("turned on again, the tunnel is %+v", s.Tunnel)
		}
		if now, err := bpf.PinnedTunnel(m.options.PinPath); err != nil || now.Leaving != 0 || now.Port == 0 {
			t.Errorf("turned on again, the tunnel is %+v, %v", now, err)
		}
	})
}
