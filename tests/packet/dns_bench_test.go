// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/cilium/ebpf"
	miekg "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lb"
)

// BenchmarkAQuestionInTheKernel is the time of the programs from a pod's question to its answer, tail call and all, as the kernel's statistics
// have it (in-kernel-ns/op), for what a ClusterIP, a headless Service of five endpoints and a walk through a search list ask; and that of a
// question which is handed to the responder, of which each finds its flow.
func BenchmarkAQuestionInTheKernel(b *testing.B) {
	r := newRig(b, patientNames())
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	check(b, err)
	defer stats.Close()
	for _, w := range worlds(lb.UDP) {
		own := startResponder(b)
		n := r.in(b).answers(w, own, shop(), namesOptions())
		for _, row := range []struct {
			what, name string
			qtype      uint16
			answered   bool
		}{
			{"ClusterIP", "web.prod.svc.cluster.local", miekg.TypeA, true},
			{"NODATA", "web.prod.svc.cluster.local", miekg.TypeAAAA, true},
			{"five endpoints", "db.prod.svc.cluster.local", miekg.TypeA, true},
			{"search list", "www.example.com.prod.svc.cluster.local", miekg.TypeA, true},
			{"responder", "www.example.com", miekg.TypeA, false},
		} {
			in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 53)).with("", string(question(row.name, row.qtype))).bytes()
			b.Run(w.String()+"/"+row.what, func(b *testing.B) {
				program := n.program(fromPod)
				before, err := program.Stats()
				check(b, err)
				for b.Loop() {
					if code, _, err := n.execute(fromPod, in); err != nil || (code == actRedirect) != row.answered {
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
