// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// What goes on through SNAT meets no policy of the host's IPsec, as docs/between-nodes.md and SECURITY.md say: neither one that blocks, nor one that asks
// for encryption by an association that is not there, with which the host itself could send nothing.
func TestWhatGoesOnThroughSNATPassesPoliciesOfIPsecBy(t *testing.T) {
	eachCrossroads(t, false, func(c crossroads, w world) {
		for i, does := range []string{"action block", "tmpl proto esp mode transport"} {
			policy := func(verb, does string) {
				c.Helper()
				command := fmt.Sprintf("ip xfrm policy %s src %s dst %s dir out %s", verb, w.own(), w.pod(2), does)
				if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
					c.Fatalf("%s: %v: %s", command, err, out)
				}
			}
			policy("add", does)
			c.open(w, i+1)
			policy("delete", "")
		}
	})
}

// Nothing leaves the tunnel by a device without an Ethernet header: no hello is answered there, so that other nodes send by SNAT what would come by it.
func TestNoHelloIsAnsweredByADeviceWithoutAnEthernetHeader(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		s, ethernet, bare, _ := newUplinks(t, true)
		for _, w := range worlds(lb.UDP) {
			hello := w.packet(at(w.node1(), 40000), at(w.node2(), tunnelPort))
			hello.payload = []byte{0, 0x80, 0, 0, 0, 0, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8}
			for _, row := range []struct {
				by      tap
				verdict string
			}{{ethernet, "reject_hello"}, {bare, "pass_not_service"}} {
				counted := counter{"from_net", row.verdict}
				before := s.other.counters()[counted].Packets
				row.by.send(t, offload{}, hello.bytes())
				for deadline := time.Now().Add(patience); s.other.counters()[counted].Packets == before; runtime.Gosched() {
					if time.Now().After(deadline) {
						t.Fatalf("%s: a hello by %s is not counted as %s: %v", w, row.by.link.Attrs().Name, row.verdict, s.other.counters())
					}
				}
			}
		}
	})
}
