// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

var networks = map[string]lab.Network{"routed": lab.Routed, "shared": lab.Shared, "tunneled": lab.Tunneled}

// onNetworks runs a test on two nodes of each kind of network, with the rules that CNIs install and without.
func onNetworks(t *testing.T, test func(t *testing.T, l *lab.Lab, near, far *lab.Node)) {
	t.Helper()
	for name, network := range networks {
		for _, rules := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s rules=%t", name, rules), func(t *testing.T) {
				l := newLab(t, lab.Options{Network: network, Netfilter: rules})
				test(t, l, addNode(t, l, lab.NodeOptions{Name: "n1"}), addNode(t, l, lab.NodeOptions{Name: "n2", Bridge: true}))
			})
		}
	}
}

func TestPodsReachThoseOfAnotherNodeOnEveryNetwork(t *testing.T) {
	onNetworks(t, func(t *testing.T, _ *lab.Lab, near, far *lab.Node) {
		client, server := addPod(t, near, "client"), addPod(t, far, "web")
		serve(t, &server.Host)
		for _, six := range []bool{false, true} {
			checkAsk(t, client, server, six)
			checkTransfer(t, client, server, six)
		}
	})
}

func TestANodeReachesPodsAndIsSeenAsItsRoutingSays(t *testing.T) {
	onNetworks(t, func(t *testing.T, _ *lab.Lab, near, far *lab.Node) {
		for _, server := range []*lab.Pod{addPod(t, near, "web-1"), addPod(t, far, "web-2")} {
			serve(t, &server.Host)
			for _, six := range []bool{false, true} {
				source, err := near.Source(server.Address(six))
				if err != nil {
					t.Fatal(err)
				}
				checkSeen(t, &near.Host, netip.AddrPortFrom(server.Address(six), port), source)
			}
		}
	})
}

func TestAHostOutsideAndTheNodesReachEachOther(t *testing.T) {
	onNetworks(t, func(t *testing.T, l *lab.Lab, near, _ *lab.Node) {
		outside, err := l.AddOutside(lab.OutsideOptions{Name: "outside"})
		if err != nil {
			t.Fatal(err)
		}
		serve(t, &near.Host)
		serve(t, &outside.Host)
		for _, six := range []bool{false, true} {
			checkSeen(t, &outside.Host, netip.AddrPortFrom(near.Address(six), port), outside.Address(six))
			checkSeen(t, &near.Host, netip.AddrPortFrom(outside.Address(six), port), near.Address(six))
		}
	})
}

// The rules hide pods from the world behind their node's address.
func TestAPodIsSeenOutsideAsItselfOrAsItsNode(t *testing.T) {
	for _, rules := range []bool{false, true} {
		l := newLab(t, lab.Options{Netfilter: rules})
		outside, err := l.AddOutside(lab.OutsideOptions{Name: "outside"})
		if err != nil {
			t.Fatal(err)
		}
		serve(t, &outside.Host)
		node := addNode(t, l, lab.NodeOptions{Name: "n1"})
		pod := addPod(t, node, "client")
		for _, six := range []bool{false, true} {
			want := pod.Address(six)
			if rules {
				want = node.Address(six)
			}
			checkSeen(t, &pod.Host, netip.AddrPortFrom(outside.Address(six), port), want)
		}
	}
}

func serve(t *testing.T, h *lab.Host) {
	t.Helper()
	if _, err := h.Serve(port); err != nil {
		t.Fatal(err)
	}
}

// checkSeen asks over TCP and UDP and compares the client's address that the server saw.
func checkSeen(t *testing.T, client *lab.Host, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		answer, err := client.Ask(context.Background(), network, to, lab.DialOptions{})
		if err != nil || answer.Client.Addr() != want {
			t.Errorf("%s asks %s %s: %+v, %v; want to be seen as %s", client, network, to, answer, err, want)
		}
	}
}

func TestANarrowHopInFrontOfAHostOutsideIsDiscovered(t *testing.T) {
	const narrow = 1400
	l := newLab(t, lab.Options{})
	node := addNode(t, l, lab.NodeOptions{Name: "n1"})
	outside, err := l.AddOutside(lab.OutsideOptions{Name: "outside", PathMTU: narrow})
	if err != nil {
		t.Fatal(err)
	}
	serve(t, &outside.Host)
	client := addPod(t, node, "client")
	for _, six := range []bool{false, true} {
		conn, err := client.Dial(context.Background(), "tcp", netip.AddrPortFrom(outside.Address(six), port), lab.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := errors.Join(conn.Get(1, 1<<20), conn.Put(2, 1<<20)); err != nil {
			t.Error(err)
		}
		if mtu, err := conn.PathMTU(); err != nil || mtu != narrow {
			t.Errorf("path MTU %d, %v", mtu, err)
		}
	}
}
