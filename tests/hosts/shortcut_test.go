// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// forwarded counts what the stack of a node forwards for pods and clients, but ICMP.
const forwarded = `
table inet seen {
	counter forwarded { }
	chain forward {
		type filter hook forward priority filter;
		meta l4proto { tcp, udp } counter name forwarded
	}
}
`

// --shortcut=on: what must work works, and once neighbours and MTUs are known the stack forwards none of it, answers neither.
func TestTheShortcutPassesTheStackBy(t *testing.T) {
	for name, o := range map[string]options{
		"routed":                    {},
		"routed, as clsact filters": {alone: true, agent: []string{"--attach", "clsact"}},
		"through VXLAN":             {lab: lab.Options{Network: lab.Tunneled}},
	} {
		o.agent = append(o.agent, "--shortcut", "on")
		t.Run(name, func(t *testing.T) {
			s := newStage(t, o)
			s.part("every client and frontend and backend", checkMatrix)
			s.part("a pod reaches itself by every frontend", checkSelf)
			s.part("big transfers and datagrams from off the node arrive whole", checkContentFromOutside)
			s.part("datagrams sent as segments arrive whole", checkSegments)
			s.part("the stack forwards nothing", checkPassedBy)
		})
	}
}

func checkPassedBy(t *testing.T, s *stage) {
	backends := map[*lab.Pod]*service{s.near: s.next(), s.far: s.next()}
	for backend, of := range backends {
		s.serve(of, ready(backend)...)
	}
	s.useAll(backends)
	if err := s.here.Netfilter(forwarded); err != nil {
		t.Fatal(err)
	}
	// The kernel forgets neighbours that its own stack has not asked for in a minute: the next round finds them again.
	packets := -1
	for round := 0; round < 3 && packets != 0; round++ {
		before := s.forwards()
		s.useAll(backends)
		packets = s.forwards() - before
	}
	if packets != 0 {
		t.Errorf("the stack forwarded %d packets in the last of three rounds, and some in each", packets)
	}
	before := s.forwards()
	straight := dial(t, s.pod, "tcp", netip.AddrPortFrom(s.near.Address(false), targetPort), s.port())
	if _, err := straight.Who(); err != nil || s.forwards() == before {
		t.Errorf("of a connection that is no Service's, the stack forwarded nothing; %v", err)
	}
}

// useAll has every client but the node itself use every backend: a question, and of TCP a few megabytes both ways.
func (s *stage) useAll(backends map[*lab.Pod]*service) {
	s.t.Helper()
	for backend, of := range backends {
		for _, client := range []host{s.pod, s.outside} {
			for _, w := range ways() {
				conn := s.dial(client, of, loadBalancer, w)
				s.checkAnswer(client, conn, backend)
				if w.network == "tcp" {
					if err := transfer(conn, 4*megabyte); err != nil {
						s.t.Error(err)
					}
				}
			}
		}
	}
}

// forwards is how many packets the stack of the first node has forwarded since it counts them.
func (s *stage) forwards() (packets int) {
	s.t.Helper()
	said, err := s.here.NetfilterState("counter", "inet", "seen", "forwarded")
	if err != nil {
		s.t.Fatal(err)
	}
	_, number, _ := strings.Cut(said, "packets ")
	if _, err := fmt.Sscan(number, &packets); err != nil {
		s.t.Fatalf("read %q: %v", said, err)
	}
	return packets
}

// E6, --shortcut=auto: it is taken while nothing is passed by, and connections go on whichever way it is, and when the agent that looks is gone.
func TestTheShortcutIsTakenOnlyWhileItPassesNothingBy(t *testing.T) {
	s := newStage(t, options{alone: true, agent: []string{"--shortcut", "auto"}})
	s.awaitShortcut("strict reverse path filter of " + lab.Uplink + " (rp_filter)")
	s.shell("for path in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $path; done")
	s.awaitShortcut("")
	backends := map[*lab.Pod]*service{s.near: s.next(), s.far: s.next()}
	var held []*lab.Conn
	for backend, of := range backends {
		s.serve(of, ready(backend)...)
		for _, client := range []host{s.pod, s.outside} {
			for _, w := range ways() {
				held = append(held, s.dial(client, of, loadBalancer, w))
			}
		}
	}
	goOn := func() {
		t.Helper()
		for _, conn := range held {
			if _, err := conn.Who(); err != nil {
				t.Errorf("%s -> %s: %v", conn.Local(), conn.Remote(), err)
			}
		}
	}
	goOn()
	for _, in := range []struct{ found, make, remove string }{
		{"nftables chain inet seen forward", "nft -f - <<'END'" + forwarded + "END", "nft delete table inet seen"},
		{"routing rule 32765: table 100", "ip rule add fwmark 7 lookup 100", "ip rule del fwmark 7"},
		{"queue tbf of " + s.near.Device, "tc qdisc add dev " + s.near.Device + " root tbf rate 1gbit burst 1m latency 50ms", "tc qdisc del dev " + s.near.Device + " root"},
	} {
		s.shell(in.make)
		s.awaitShortcut(in.found)
		goOn()
		if strings.HasPrefix(in.found, "nftables") && s.forwards() == 0 {
			t.Error("the stack has forwarded nothing, though there is a rule that wants to see it")
		}
		s.shell(in.remove)
		s.awaitShortcut("")
		goOn()
	}
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.shell("nft -f - <<'END'" + forwarded + "END")
	s.await("the stack has packets without an agent", func() bool { goOn(); return s.forwards() > 0 || t.Failed() })
}

// awaitShortcut polls until the first node's agent takes the shortcut; with words, until it does not, because of that among others.
func (s *stage) awaitShortcut(because string) {
	s.t.Helper()
	s.await("the shortcut, in the way: "+because, func() bool {
		status, err := agent.ReadStatus(s.LockDir(), s.here.PinPath())
		if err != nil || status.Shortcut == nil {
			return false
		}
		return status.Shortcut.Taken == (because == "") && (because == "" || slices.Contains(status.Shortcut.PassedBy, because))
	})
}

// shell runs a script on the first node.
func (s *stage) shell(script string) {
	s.t.Helper()
	s.shellAt(s.here.Namespace, script)
}

func (s *stage) shellAt(at *lab.Namespace, script string) {
	s.t.Helper()
	err := at.Do(func() error {
		if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", script, err, out)
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}
