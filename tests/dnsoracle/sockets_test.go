// SPDX-License-Identifier: Apache-2.0

package dnsoracle

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/dns"
)

// clientsOfBenchmark ask at a time, each one question after the other.
const clientsOfBenchmark = 8

// BenchmarkQuestionsOverSockets has CoreDNS and nearlb answer the same questions by UDP, and tells the servers' own processor time for each
// (server-ns/op), and how many that is for a second of a core: the clients' threads are counted apart.
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
				clients := askOverSockets(b, netip.MustParseAddrPort(server.at), message, question.rcode)
				own := float64(clients.all-clients.own) / float64(b.N)
				b.ReportMetric(own, "server-ns/op")
				b.ReportMetric(1e9/own, "questions/s-of-a-core")
			})
		}
	}
}

// processorTime is that of this process while clients asked, and of the clients' threads alone, in nanoseconds.
type processorTime struct{ all, own int64 }

// askOverSockets asks b.N times, by clients that have threads of their own.
func askOverSockets(b *testing.B, at netip.AddrPort, message []byte, rcode int) (took processorTime) {
	var mu sync.Mutex
	var group sync.WaitGroup
	before := usage(unix.RUSAGE_SELF)
	for i := range clientsOfBenchmark {
		group.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := usage(unix.RUSAGE_THREAD)
			err := askInTurn(at, message, rcode, (b.N+i)/clientsOfBenchmark)
			mu.Lock()
			defer mu.Unlock()
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
func askInTurn(at netip.AddrPort, message []byte, rcode, questions int) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	if err := unix.Connect(socket, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}); err != nil {
		return err
	}
	answer := make([]byte, wire.MinMsgSize)
	for range questions {
		if _, err := unix.Write(socket, message); err != nil {
			return err
		}
		n, err := unix.Read(socket, answer)
		if err != nil || n < len(message) || int(answer[3]&15) != rcode {
			return fmt.Errorf("an answer of %d bytes: %x, %w", n, answer[:max(0, n)], err)
		}
	}
	return nil
}

// usage is user and system time in nanoseconds.
func usage(who int) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(who, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
