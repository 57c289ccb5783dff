// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"fmt"
	"testing"

	wire "github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// servicesOfBenchmark is how many Services the benchmark's cluster has.
const servicesOfBenchmark = 1000

// BenchmarkAnswers has CoreDNS and nearlb answer the same questions about the same Services, in memory: without sockets, and without what
// CoreDNS's cache or nearlb's forwarding would add.
func BenchmarkAnswers(b *testing.B) {
	s := setup{}
	s.Zones, s.ReverseZones, s.TTL, s.Pods = []string{"cluster.local"}, []string{"in-addr.arpa", "ip6.arpa"}, 5, "disabled"
	objects := benchmarkCluster()
	theirs, ours := startCoreDNS(b, b.TempDir(), s, true, objects...), startNearlb(b, s, true, objects...)
	servers := []struct {
		name   string
		answer func(*wire.Msg) *wire.Msg
	}{
		{"CoreDNS", func(q *wire.Msg) *wire.Msg { return theirs.answer(q, transport{}) }},
		{"nearlb", func(q *wire.Msg) *wire.Msg { return askNearlb(ours, q, transport{}) }},
	}
	for _, question := range []struct {
		name  string
		of    string
		qtype uint16
		rcode int
	}{
		{"A", "web-7.prod.svc.cluster.local.", wire.TypeA, wire.RcodeSuccess},
		{"AAAA", "web-7.prod.svc.cluster.local.", wire.TypeAAAA, wire.RcodeSuccess},
		{"SRV", "_http._tcp.web-7.prod.svc.cluster.local.", wire.TypeSRV, wire.RcodeSuccess},
		{"PTR", "7.0.96.10.in-addr.arpa.", wire.TypePTR, wire.RcodeSuccess},
		{"NXDOMAIN", "www.example.com.prod.svc.cluster.local.", wire.TypeA, wire.RcodeNameError},
	} {
		q := new(wire.Msg).SetQuestion(question.of, question.qtype)
		for _, server := range servers {
			b.Run(question.name+"/"+server.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if m := server.answer(q); m.Rcode != question.rcode || (m.Rcode == wire.RcodeSuccess && len(m.Answer) == 0) {
						b.Fatalf("%s answers %v", server.name, m)
					}
				}
			})
		}
	}
}

// benchmarkCluster is Services of both families with an address and a port each.
func benchmarkCluster() []runtime.Object {
	all := []runtime.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "prod"}}}
	for i := range servicesOfBenchmark {
		four, six := fmt.Sprintf("10.96.%d.%d", i/256, i%256), fmt.Sprintf("fd00:96::%x", i+1)
		all = append(all, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "prod", Name: fmt.Sprintf("web-%d", i)},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeClusterIP, ClusterIP: four, ClusterIPs: []string{four, six},
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
				Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
			},
		})
	}
	return all
}
