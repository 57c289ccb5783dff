// SPDX-License-Identifier: Apache-2.0

package kubeproxy_test

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/tests/privileged"
)

// reserveRules have clients of 10.96.0.1 and fd96::1 sent to one server, which sees them by one of two ports.
const reserveRules = `ip link set lo up; ip link add near type veth peer name far
	ip address add 192.0.2.1/24 dev near; ip address add 2001:db8::1/64 dev near nodad; ip link set near up; ip link set far up
	ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev near nud permanent; ip neighbour add 2001:db8::2 lladdr 02:00:00:00:00:02 dev near nud permanent
	ip route add 10.96.0.0/16 dev near; ip route add fd96::/16 dev near
	nft -f - <<END
table ip nat {
	chain output { type nat hook output priority -100; meta l4proto { tcp, udp } ip daddr 10.96.0.1 dnat to 192.0.2.2:53; }
	chain postrouting { type nat hook postrouting priority 100; meta l4proto { tcp, udp } ip daddr 192.0.2.2 snat to 192.0.2.1:61000-61001; }
}
table ip6 nat {
	chain output { type nat hook output priority -100; meta l4proto { tcp, udp } ip6 daddr fd96::1 dnat to [2001:db8::2]:53; }
	chain postrouting { type nat hook postrouting priority 100; meta l4proto { tcp, udp } ip6 daddr 2001:db8::2 snat to [2001:db8::1]:61000-61001; }
}
END`

// A client off the node has port 61000 towards the server by nearlb, whose packets connection tracking does not see: a client that kube-proxy
// masquerades would be answered in its place.
func TestNATKeepsOffAPairThatIsReserved(t *testing.T) {
	for network, protocol := range map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP} {
		for _, at := range []struct{ source, server, frontend string }{
			{"192.0.2.1:61000", "192.0.2.2:53", "10.96.0.1:53"}, {"[2001:db8::1]:61000", "[2001:db8::2]:53", "[fd96::1]:53"},
		} {
			t.Run(network+" "+at.frontend, func(t *testing.T) {
				privileged.Namespace(t, func(*os.File) {
					shell(t, reserveRules)
					pair := kubeproxy.Pair{Protocol: protocol, Source: netip.MustParseAddrPort(at.source), Server: netip.MustParseAddrPort(at.server)}
					for range 2 { // the second time it is there
						if kept, err := kubeproxy.Reserve([]kubeproxy.Pair{pair}); kept != 1 || err != nil {
							t.Fatalf("kept %d, %v", kept, err)
						}
					}
					for range 2 { // the first has the other port, and the second none
						begin(t, network, at.frontend)
					}
					if got := sourcePorts(t, at.frontend); got != "61001" {
						t.Errorf("clients of %s have ports %q towards the server", at.frontend, got)
					}
					if all, err := kubeproxy.Connections(); err != nil || len(all) != 1 {
						t.Errorf("taken for translated: %v, %v", all, err)
					}
				})
			})
		}
	}
}

// begin sends the first packet of a connection, which nobody answers, or which has no port.
func begin(t *testing.T, network, to string) {
	t.Helper()
	at, kind := netip.MustParseAddrPort(to), unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	domain, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(at.Port()), Addr: [4]byte(at.Addr().AsSlice()[:4])})
	if at.Addr().Is6() {
		domain, address = unix.AF_INET6, &unix.SockaddrInet6{Port: int(at.Port()), Addr: at.Addr().As16()}
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	_ = unix.Connect(fd, address) // TCP: its answer is not awaited
	if network == "udp" {
		_, _ = unix.Write(fd, []byte("?"))
	}
}

// sourcePorts are those that the server sees of clients of a frontend.
func sourcePorts(t *testing.T, frontend string) string {
	t.Helper()
	at := netip.MustParseAddrPort(frontend)
	family := netlink.InetFamily(unix.AF_INET)
	if at.Addr().Is6() {
		family = unix.AF_INET6
	}
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
	if err != nil {
		t.Fatal(err)
	}
	var ports []string
	for _, f := range flows {
		if f.Forward.DstIP.Equal(at.Addr().AsSlice()) {
			ports = append(ports, strconv.Itoa(int(f.Reverse.DstPort)))
		}
	}
	return strings.Join(ports, " ")
}
