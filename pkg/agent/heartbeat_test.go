// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// Heartbeats are on where nodes share a key, and the tunnel's port is open then; without a key nobody may ask for them.
func TestHeartbeatsWantAKey(t *testing.T) {
	for _, row := range []struct {
		flag, want lb.Ejection
		key        string
		refused    bool
	}{
		{"", lb.EjectionOff, "", false},
		{"", lb.EjectionOn, "key", false},
		{lb.EjectionOff, lb.EjectionOff, "key", false},
		{lb.EjectionObserve, lb.EjectionObserve, "key", false},
		{lb.EjectionOn, lb.EjectionOn, "", true},
		{"some", "some", "key", true},
	} {
		o := DefaultOptions()
		o.NodeName, o.Heartbeats, o.TunnelKeyFile = "n1", row.flag, row.key
		if got, err := o.heartbeats(), o.Check(); got != row.want || (err != nil) != row.refused {
			t.Errorf("%+v: %q, %v", row, got, err)
		}
		if open := o.tunnelPort() == DefaultCarryPort; open != (row.want != lb.EjectionOff) {
			t.Errorf("%+v: port %d", row, o.tunnelPort())
		}
	}
}

// Over sockets: an answer counts from the node that was asked, from the port of the tunnel, with the cookie that nodes share and the question's mark.
// Nobody is asked before there is a key.
func TestAnAnswerToAHeartbeatHasTheCookieAndTheMark(t *testing.T) {
	port := 0
	listen := func(last byte) *net.UDPConn {
		t.Helper()
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, last), Port: port})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	node := listen(2)
	stranger := listen(2) // at another port
	port = node.LocalAddr().(*net.UDPAddr).Port
	last := listen(3)
	addresses := func(last byte) []netip.Addr { return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, last})} }
	var cookies tables.Cookies
	h := newHeartbeats(Options{NodeName: "n1", TunnelKeyFile: "key", CarryPort: uint16(port)}, func() tables.Cookies { return cookies }, nil)
	h.follow(map[string][]netip.Addr{"n2": addresses(2), "n3": addresses(3)}, []string{"n2", "n3"})
	if h.ask(0); h.round > 0 {
		t.Error("nodes are asked without a key")
	}
	cookies = tunnelCookies([]string{oneKey})
	if err := h.sockets.open(addresses(1), 0, func(s *net.UDPConn) { go h.hear(s) }); err != nil {
		t.Fatal(err)
	}
	defer h.sockets.close()
	h.ask(0)
	asked := func(c *net.UDPConn) (answer []byte, from netip.AddrPort) {
		t.Helper()
		buffer := make([]byte, helloMost)
		n, from, err := c.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatal(err)
		}
		buffer[6] = helloAnswer
		return buffer[:n], from
	}
	send := func(by *net.UDPConn, answer []byte, to netip.AddrPort) {
		t.Helper()
		if _, err := by.WriteToUDPAddrPort(answer, to); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(node string) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.peers[node].answered
	}
	good, from := asked(node)
	for at := range good {
		if at == 7 {
			continue // what else the node can do
		}
		wrong := slices.Clone(good)
		wrong[at] ^= 1
		send(node, wrong, from)
	}
	send(stranger, good, from)
	send(last, good, from)
	end, from := asked(last)
	send(last, end, from) // behind all of these
	if lab.Await(time.Minute, func() bool { return hears("n3") }) != nil {
		t.Fatal("an answer does not count")
	}
	if hears("n2") {
		t.Error("a wrong answer counts")
	}
	send(node, good, from)
	if lab.Await(time.Minute, func() bool { return hears("n2") }) != nil {
		t.Error("the right answer does not count")
	}
}
