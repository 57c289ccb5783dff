// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// The sum that a network card has computed stays true through SNAT, whoever mends the checksums: what is sent on, and the errors
// that are sent on or made here.
func TestASumOfTheWholePacketFollowsEveryChangeOfSNAT(t *testing.T) {
	for name, helpers := range map[string]uint8{"programs": 0, "helpers": 1} {
		t.Run(name, func(t *testing.T) {
			forEachSite(t, bpf.Options{Knobs: map[string]any{"checksum_helpers": helpers}}, func(s site, w world) {
				in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
				if err := s.runSummed(fromPod, in.bytes()); errors.Is(err, unix.EINVAL) {
					t.Skip("this kernel cannot make packets with a complete checksum (Linux 6.15)")
				}
				s.counted = s.counters()
				s.publish(far(w, 2))
				c := s.connect(w, 1)
				all := summedFrames(w, c)
				if helpers == 0 && readsSums(s) {
					// The kernel's check looks at the quotation of an answer, whose sum it had: whole here, cut by the helpers.
					all["reject_time_exceeded"] = [][]byte{ending(c.in.with("A", "text")), ending(c.out.reply("A", "odd"))}
				}
				for verdict, frames := range all {
					for _, frame := range frames {
						s.counted = s.counters()
						if err := s.runSummed(fromPod, frame); err != nil {
							s.Errorf("%s: %v\n%s", verdict, err, show(frame))
						}
						wanted := counter{fromNet, verdict}
						if now := s.counters()[wanted].Packets; now != s.counted[wanted].Packets+1 {
							s.Errorf("%s was not counted for\n%s", verdict, show(frame))
						}
					}
				}
			}, lb.TCP, lb.UDP)
		})
	}
}

// readsSums says whether programs can read the state of a packet's checksum (Linux 6.2): without that they use the helpers anyway.
func readsSums(t testing.TB) bool {
	t.Helper()
	kernel, err := btf.LoadKernelSpec()
	check(t, err)
	var f *btf.Func
	err = kernel.TypeByName("bpf_cast_to_kern_ctx", &f)
	if !errors.Is(err, btf.ErrNotFound) {
		check(t, err)
	}
	return err == nil
}

// summedFrames are frames of a connection by the verdict that they get.
func summedFrames(w world, c talk) map[string][][]byte {
	answer := c.out.reply("PA", "an answer of odd size")
	other := c.in.from(at(w.outside(2), 41000))
	all := map[string][][]byte{
		"translate_balance":     {other.bytes()},
		"translate_established": {c.in.with("A", "some data").bytes(), withoutSum(c.in.with("A", "odd")).bytes()},
		"translate_reply":       {answer.bytes(), withoutSum(answer).bytes()},
	}
	for _, f := range failures() {
		for _, n := range quotations() {
			all["translate_icmp"] = append(all["translate_icmp"],
				f.of(c.out.with("A", "text"), w.addr("172.31.0.", "fd00:31::", 2), n).bytes(),
				f.of(answer.from(c.in.dst).to(c.in.src), w.router(), n).bytes())
		}
	}
	return all
}
