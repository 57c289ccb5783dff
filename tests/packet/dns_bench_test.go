// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	miekg "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/dns"
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

// BenchmarkNamesInTheTable is what it takes to write the names of 10,000 Services with ten endpoints each: all of them, all over those of an
// agent before, and those of one Service of which one endpoint changes to and fro.
func BenchmarkNamesInTheTable(b *testing.B) {
	const services, endpoints = 10_000, 10
	o := patientNames()
	o.Sizes = bpf.Sizes{Answers: 1 << 17}
	r := newRig(b, o)
	view := dns.NewView(dns.ViewOptions{Node: lb.Node{Name: "n1"}})
	state := func(s, missing int) *lb.NamedService {
		n := &lb.NamedService{Name: lb.ServiceName{Namespace: fmt.Sprintf("ns-%d", s%100), Name: fmt.Sprintf("service-%d", s)}}
		n.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(s >> 8), byte(s)})}
		n.Ports = []lb.NamedPort{{Name: "http", Protocol: lb.TCP, Number: 80}}
		var all []lb.NamedEndpoint
		for e := range endpoints - missing {
			all = append(all, lb.NamedEndpoint{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(128 + e), byte(s >> 8), byte(s)})}, Is: lb.IsReady})
		}
		n.Slices = []*lb.NamedSlice{lb.NewNamedSlice("s", n.Ports, all...)}
		return n
	}
	for s := range services {
		view.Set(state(s, 0))
	}
	view.Synced()
	responder := dns.NewResponder(view, namesOptions())
	mirror := func(b *testing.B) {
		view.Mirror(responder, r.tables.Answers(), func(err error) { b.Fatal(err) })
	}
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			check(b, r.tables.Answers().Clear())
			b.StartTimer()
			mirror(b)
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			mirror(b)
		}
	})
	b.Run("endpoint", func(b *testing.B) {
		b.ReportAllocs()
		with, without := state(7, 0), state(7, 1)
		for b.Loop() {
			for _, next := range []*lb.NamedService{without, with} {
				view.Narrow(next)
				view.Set(next)
			}
		}
	})
}
