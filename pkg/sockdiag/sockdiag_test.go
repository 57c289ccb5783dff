// SPDX-License-Identifier: Apache-2.0

package sockdiag_test

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/nearlb/nearlb/pkg/sockdiag"
	"github.com/nearlb/nearlb/tests/privileged"
)

// pair connects a UDP socket to another one over loopback and gives its other end's address.
func pair(t *testing.T, network, address string) (client *net.UDPConn, server netip.AddrPort) {
	t.Helper()
	listener, err := net.ListenUDP(network, &net.UDPAddr{IP: net.ParseIP(address)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	client, err = net.DialUDP(network, nil, listener.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, listener.LocalAddr().(*net.UDPAddr).AddrPort()
}

func loopback(t *testing.T) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
}

func TestAKernelThatEndsSocketsSaysSoAndNoneIsEnded(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		loopback(t)
		client, _ := pair(t, "udp4", "127.0.0.1")
		if err := sockdiag.Probe(); err != nil {
			t.Error(err)
		}
		if _, err := client.Write([]byte("x")); err != nil {
			t.Errorf("a socket that nobody chose: %v", err)
		}
	})
}

func TestOnlyTheSocketsThatAreChosenAreEnded(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		loopback(t)
		for network, address := range map[string]string{"udp4": "127.0.0.1", "udp6": "::1"} {
			chosen, remote := pair(t, network, address)
			other, _ := pair(t, network, address)
			seen := map[uint64]bool{}
			ended, err := sockdiag.End(netns.None(), func(cookie uint64, to netip.AddrPort) bool {
				seen[cookie] = true
				return to == remote
			})
			if err != nil || ended != 1 {
				t.Errorf("%s: %d sockets ended, %v; want one", network, ended, err)
			}
			if len(seen) < 2 || seen[0] {
				t.Errorf("%s: asked of the cookies %v, want one of each socket", network, seen)
			}
			if _, err := chosen.Write([]byte("x")); err == nil {
				t.Errorf("%s: the chosen socket still sends", network)
			}
			if _, err := other.Write([]byte("x")); err != nil {
				t.Errorf("%s: the other socket: %v", network, err)
			}
		}
	})
}
