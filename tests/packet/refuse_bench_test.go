// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// BenchmarkARefusedPacket is the time of the programs for a packet that a Service does not get, told of to nearlb drops or, as nearly all of
// them where they come fast, only counted: tail call and all, as the kernel's statistics have it (in-kernel-ns/op).
func BenchmarkARefusedPacket(b *testing.B) {
	r := newRig(b, bpf.Options{})
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	check(b, err)
	defer stats.Close()
	for _, w := range worlds(lb.TCP) {
		for _, row := range []struct {
			name   string
			action lb.Action
			reason lb.Reason
		}{{"dropped", lb.Drop, lb.ReasonNoLocalEndpoints}, {"rejected", lb.Reject, lb.ReasonNoEndpoints}} {
			b.Run(w.String()+"/"+row.name, func(b *testing.B) {
				n := r.in(b).at(w)
				n.publish(deny(row.action, row.reason)(w)...)
				in := packet{flags: "S", seq: 1}.from(at(w.pod(1), 41000)).to(at(w.vip(10), 80))
				in.protocol = lb.TCP
				frame, program := in.bytes(), n.program(fromPod)
				before, err := program.Stats()
				check(b, err)
				for b.Loop() {
					if code, _, err := n.execute(fromPod, frame); err != nil || code == actUnspec {
						b.Fatalf("action %d: %v", code, err)
					}
				}
				after, err := program.Stats()
				check(b, err)
				b.ReportMetric(float64(after.Runtime-before.Runtime)/float64(after.RunCount-before.RunCount), "in-kernel-ns/op")
			})
		}
	}
}
