// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/dns"
)

// clientsOfBenchmark ask at a time, each one question after the other.
const clientsOfBenchmark = 8

// BenchmarkQuestionsOverSockets has CoreDNS and nearlb answer the same questions by UDP, and tells the servers' own processor time for each
// (server-ns/op), and how many that is for a second of a core: the clients' threads are counted apart. Then one client asks alone, and half of
// its questions wait no longer than p50-us.
func BenchmarkQuestionsOverSockets(b *testing.B) {
	s := setup{}
	s.Zones, s.ReverseZones, s.TTL, s.Pods = []string{"cluster.local"}, []string{"in-addr.arpa", "ip6.arpa"}, 5, "disabled"
	objects := benchmarkCluster()
	coreDNS, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	theirs := startCoreDNS(b, b.TempDir(), s, true, objects...)
	go func() { _ = theirs.server.ServePacket(coreDNS) }()
	b.Cleanup(func() { _ = theirs.server.Stop() })
	ready := make(chan string)
	ours := dns.Server{Responder: startNearlb(b, s, true, objects...), Address: "127.0.0.1:0", Ready: func(at string) { ready <- at }}
	ctx, cancel := context.WithCancel(context.Background())
	b.Cleanup(cancel)
	go func() { _ = ours.Run(ctx) }()
	servers := []struct{ name, at string }{{"CoreDNS", coreDNS.LocalAddr().String()}, {"nearlb", <-ready}}
	for _, question := range []struct {
		name, of string
		rcode    int
	}{{"A", "web-7.prod.svc.cluster.local.", wire.RcodeSuccess}, {"NXDOMAIN", "www.example.com.prod.svc.cluster.local.", wire.RcodeNameError}} {
		message, err := new(wire.Msg).SetQuestion(question.of, wire.TypeA).Pack()
		if err != nil {
			b.Fatal(err)
		}
		for _, server := range servers {
			b.Run(question.name+"/"+server.name, func(b *testing.B) {
				clients := askOverSockets(b, clientsOfBenchmark, netip.MustParseAddrPort(server.at), message, question.rcode)
				own := float64(clients.all-clients.own) / float64(b.N)
				b.ReportMetric(own, "server-ns/op")
				b.ReportMetric(1e9/own, "questions/s-of-a-core")
			})
			b.Run(question.name+"-alone/"+server.name, func(b *testing.B) {
				client := askOverSockets(b, 1, netip.MustParseAddrPort(server.at), message, question.rcode)
				slices.Sort(client.waited)
				b.ReportMetric(float64(client.waited[len(client.waited)/2])/1e3, "p50-us")
			})
		}
	}
}

// asked is what questions took: processor time of this process while clients asked, that of the clients' threads alone, and how long each
// question waited for its answer.
type asked struct {
	all, own int64 // nanoseconds
	waited   []time.Duration
}

// askOverSockets asks b.N times, by clients that have threads of their own.
func askOverSockets(b *testing.B, clients int, at netip.AddrPort, message []byte, rcode int) (took asked) {
	var mu sync.Mutex
	var group sync.WaitGroup
	before := usage(unix.RUSAGE_SELF)
	for i := range clients {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := usage(unix.RUSAGE_THREAD)
			waited, err := askInTurn(at, message, rcode, (b.N+i)/clients)
			mu.Lock()
			defer mu.Unlock()
			took.waited = append(took.waited, waited...)
			if took.own += usage(unix.RUSAGE_THREAD) - began; err != nil {
				b.Error(err)
			}
		})
	}
	group.Wait()
	took.all = usage(unix.RUSAGE_SELF) - before
	return took
}

// askInTurn asks from one socket that blocks its thread, so that all that the runtime does is the server's.
func askInTurn(at netip.AddrPort, message []byte, rcode, questions int) (waited []time.Duration, err error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(socket)
	if err := unix.Connect(socket, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return nil, err
	}
	answer := make([]byte, wire.MinMsgSize)
	waited = make([]time.Duration, 0, questions)
	for range questions {
		began := time.Now()
		if _, err := unix.Write(socket, message); err != nil {
			return waited, err
		}
		n, err := unix.Read(socket, answer)
		if err != nil || n < len(message) || int(answer[3]&15) != rcode {
			return waited, fmt.Errorf("an answer of %d bytes: %x, %w", n, answer[:max(0, n)], err)
		}
		waited = append(waited, time.Since(began))
	}
	return waited, nil
}

// usage is user and system time in nanoseconds.
func usage(who int) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
