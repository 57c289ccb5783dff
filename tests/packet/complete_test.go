// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// summed is BPF_F_TEST_SKB_CHECKSUM_COMPLETE (Linux 6.15): the packet arrives as from a network card that has summed all
// of it, and the kernel refuses the run with EBADMSG when that sum does not fit the packet that the program left.
const summed = 1 << 2

// A packet whose sum the card has computed keeps a true sum, whatever is rewritten in it, and whoever mends the checksums.
func TestASumOfTheWholePacketFollowsEveryChange(t *testing.T) {
	for name, helpers := range map[string]uint8{"programs": 0, "helpers": 1} {
		t.Run(name, func(t *testing.T) {
			testSumOfTheWholePacket(t, newRig(t, bpf.Options{Knobs: map[string]any{"checksum_helpers": helpers}}))
		})
	}
}

func testSumOfTheWholePacket(t *testing.T, r *rig) {
	in, _ := webPackets(worlds(lb.TCP)[0])
	if err := r.runSummed(fromPod, in.bytes()); errors.Is(err, unix.EINVAL) {
		t.Skip("this kernel cannot make packets with a complete checksum (Linux 6.15)")
	}
	for _, w := range through(framedOnly(), worlds(lb.TCP, lb.UDP)) {
		t.Run(w.String(), func(t *testing.T) {
			r := r.in(t).at(w)
			r.publish(web(w)...)
			in, out := webPackets(w)
			hop := failures()[0].of(out, w.router(), quotations()[0])
			for _, step := range []struct {
				hook  string
				frame []byte
			}{
				{fromPod, in.bytes()},
				{fromPod, in.with("A", "some data").bytes()},
				{toPod, out.reply("SA", "an answer").bytes()},
				{toPod, hop.bytes()},
				{fromPod, withoutSum(in).bytes()},
				{toPod, withoutSum(out.reply("SA", "an answer")).bytes()},
			} {
				if err := r.runSummed(step.hook, step.frame); err != nil {
					t.Errorf("%s: %v\n%s", step.hook, err, show(step.frame))
				}
			}
			balanced := counter{r.hook(fromPod), "translate_balance"}
			if n := r.counters()[balanced].Packets - r.counted[balanced].Packets; n != 1 {
				t.Errorf("%d packets were balanced, want 1: the packets took another way", n)
			}
		})
	}
}

// runSummed gives the kernel's bare answer.
func (r *rig) runSummed(hook string, frame []byte) error {
	_, err := r.program(hook).Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512), Flags: summed})
	return err
}

// withoutSum is the packet without a checksum, where its protocol allows that.
func withoutSum(p packet) packet {
	p.noChecksum = true
	return p
}
