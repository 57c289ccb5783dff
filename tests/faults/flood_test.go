// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/rig"
)

// A flow table of 256 entries sees ten times as many clients that nobody answers: connections that were there go on with their
// server, and others are made meanwhile.
func TestAFloodOfTheFlowTableLeavesConnectionsAlone(t *testing.T) {
	const sets, ways8 = 32, 8
	c := newCluster(t)
	n1, n2 := c.node(), c.node()
	client, flooder := c.pod(n1, "client"), c.pod(n1, "flooder")
	a, d := c.servers(n1, "a")[0], c.servers(n2, "d")[0]
	silent := c.pod(n2, "silent")
	for _, six := range []bool{false, true} {
		ears, err := silent.DatagramSocket(six, targetPort)
		c.must(err)
		defer ears.Close()
	}
	good, void := web(1, a, d), web(2, silent)
	c.publish("web.yaml", good, void)
	c.agent(n1, fmt.Sprintf("--size-flow-sets=%d", sets)).serving()
	load := c.traffic()
	for range 5 {
		load.hold(client, good.address)
	}
	for _, six := range []bool{false, true} {
		load.askOver(client, way{"tcp", six}, good.address(six), a, d)
	}
	load.more(200)

	const flood = 10 * sets * ways8
	for i := range flood {
		c.must(shout(flooder, uint16(10000+i), void.address(i%2 == 1)))
	}
	load.more(200)
	next := uint16(10000 + flood)
	c.await("the programs have seen as many", func() bool { // the kernel may have dropped some before
		verdicts, err := rig.Verdicts(c.Lab, n1)
		c.must(err)
		if verdicts["translate_balance"] >= flood {
			return true
		}
		c.must(shout(flooder, next, void.address(next%2 == 1)))
		next++
		return false
	})
	load.end(t)
	if used := c.used(n1, "flows"); used > sets*ways8 {
		t.Errorf("%d flows in a table of %d", used, sets*ways8)
	}
	verdicts, err := rig.Verdicts(c.Lab, n1)
	c.must(err)
	if verdicts["translate_balance"] < flood {
		t.Errorf("%d new flows, want the %d of the flood: %v", verdicts["translate_balance"], flood, verdicts)
	}
}

// shout sends a datagram from a port and does not wait.
func shout(from *lab.Pod, port uint16, to netip.AddrPort) error {
	socket, err := from.DatagramSocket(to.Addr().Is6(), port)
	if err != nil {
		return err
	}
	defer socket.Close()
	_, err = socket.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(to))
	return err
}

// used is the number of entries of a table.
func (c *cluster) used(n *lab.Node, table string) (used uint64) {
	c.t.Helper()
	c.must(rig.Read(c.Lab, n, func(r *tables.Reader) error {
		for row, err := range r.Fill() {
			if err != nil {
				return err
			}
			if row.Table == table {
				used = row.Used
			}
		}
		return nil
	}))
	return used
}

// Session affinity has a table of its own that forgets who came longest ago: more clients than it holds are all answered.
func TestMoreClientsThanTheAffinityTableHoldsAreAllAnswered(t *testing.T) {
	const room, clients = 16, 24
	c := newCluster(t)
	n1 := c.node()
	pods := c.servers(n1, "a", "b")
	outside, err := c.AddOutside(lab.OutsideOptions{Name: "outside"})
	c.must(err)
	sticky := web(1, pods...)
	sticky.Affinity = 600
	sticky.Ports[0].NodePort = nodePort
	c.publish("web.yaml", sticky)
	c.agent(n1, fmt.Sprintf("--size-affinity=%d", room)).serving()
	for _, format := range []string{"198.18.0.%d", "2001:db8:18::%x"} {
		for i := range clients {
			address := netip.MustParseAddr(fmt.Sprintf(format, i+1))
			c.must(outside.Own(address))
			c.must(outside.Attract(address))
			to := netip.AddrPortFrom(n1.Address(address.Is6()), nodePort)
			answer, err := outside.Ask(context.Background(), "tcp", to, lab.DialOptions{Local: address})
			if err != nil || answer.Client.Addr() != address {
				t.Fatalf("%s: %+v, %v", address, answer, err)
			}
		}
	}
	if used := c.used(n1, "affinity"); used == 0 || used > room {
		t.Errorf("%d entries in a table of %d", used, room)
	}
}
