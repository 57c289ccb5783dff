// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
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

// Heartbeats use two ports.
func TestThePortBehindTheTunnelsIsOneThatHeartbeatsCanHave(t *testing.T) {
	for port, refused := range map[uint16]bool{0: false, 6091: false, 60998: false, 60999: true} { // --snat-ports begin at 61000
		o := DefaultOptions()
		o.NodeName, o.TunnelKeyFile, o.CarryPort = "n1", "key", port
		if err := o.Check(); (err != nil) != refused {
			t.Errorf("port %d: %v", port, err)
		}
		if o.Heartbeats = lb.EjectionOff; o.Check() != nil {
			t.Errorf("port %d is refused without heartbeats: %v", port, o.Check())
		}
	}
	o := DefaultOptions()
	o.NodeName, o.TunnelKeyFile, o.CarryPort, o.SNATPorts = "n1", "key", 65535, tables.PortRange{First: 50000, Last: 60000}
	if o.Check() == nil {
		t.Error("there is no port behind the last one")
	}
}

// A route of this node that leads nowhere says nothing of the node behind it.
func TestANodeThatCannotBeAskedForWantOfARouteIsNotSilent(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		if out, err := exec.Command("sh", "-c", "ip link set lo up; ip route add unreachable 198.51.100.2").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		h := newHeartbeats(Options{NodeName: "n1", TunnelKeyFile: "key", CarryPort: 6091}, func() tables.Cookies { return tunnelCookies([]string{oneKey}) }, nil)
		h.follow(map[string][]netip.Addr{"n2": {netip.MustParseAddr("198.51.100.2")}, "n3": {netip.MustParseAddr("127.0.0.3")}}, []string{"n2", "n3"})
		if err := h.sockets.open([]netip.Addr{netip.IPv4Unspecified()}, 0, func(*net.UDPConn) {}); err != nil {
			t.Fatal(err)
		}
		defer h.sockets.close()
		h.ask(0)
		if h.peers["n2"].missed != 0 || h.peers["n3"].missed != 1 {
			t.Errorf("missed: %d without a route, %d with one", h.peers["n2"].missed, h.peers["n3"].missed)
		}
	})
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
