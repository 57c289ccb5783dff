// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"os"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// liveFrames is BPF_F_TEST_XDP_LIVE_FRAMES (Linux 5.18): the kernel does with frames what the program at XDP says, as for a driver.
const liveFrames = 1 << 1

// What the program at XDP sends leaves by the other device, each time, both ways: as the kernel does it, and not as the program says. A packet in eight
// seconds is TC's.
func TestFramesThatXDPSendsLeaveByTheOtherDevice(t *testing.T) {
	const times = 64
	privileged.Namespace(t, func(*os.File) {
		r := newRig(t, bpf.Options{})
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
		clients := addTap(t, "clients", false, false, "192.0.2.2/24", "2001:db8:2::2/64")
		nodes := addTap(t, "nodes", false, false, "172.31.0.1/24", "fd00:31::1/64")
		s := joinSite(t, site{r, clients.link, nodes.link})
		for _, w := range worlds(lb.TCP, lb.UDP) {
			w.door = networkDoor
			s.rig = r.in(t).at(w)
			s.publish(far(w, 2))
			c := s.connect(w, 1)
			s.takesBoth(c)
			answer := c.out.reply("PA", "yes")
			for _, row := range []struct {
				by      tap
				in, out packet
				verdict string
			}{
				{nodes, c.in.with("A", "more"), c.out.with("A", "more"), "translate_established"},
				{clients, answer, answer.from(c.in.dst).to(c.in.src), "translate_reply"},
			} {
				counted := counter{xdp, row.verdict}
				before := s.counters()[counted].Packets
				_, err := s.objects.FromNetXdp.Run(&ebpf.RunOptions{Data: row.in.bytes(), Repeat: times, Flags: liveFrames})
				check(t, err)
				taken := s.counters()[counted].Packets - before
				if taken < times/2 || taken > times {
					t.Errorf("%s: of %d frames %d are counted as taken", w, times, taken)
				}
				want := routed(row.out)
				copy(want[6:], row.by.mac())
				for range taken {
					if _, got := row.by.receive(t); !bytes.Equal(got[6:], want[6:]) {
						t.Fatalf("%s: by %s left\n%s\nwant\n%s", w, row.by.link.Attrs().Name, show(got), show(want))
					}
				}
			}
		}
	})
}
