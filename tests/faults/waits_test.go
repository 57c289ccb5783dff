// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
	"unsafe"

	wire "github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
)

// runAsWaiter has this test binary be a pod that asks one question after the other.
const runAsWaiter = "NEARLB_TEST_WAIT"

// waitMain asks for a name so many times, from one socket, and prints what half of its questions waited no longer than, in nanoseconds.
func waitMain(to, name, times string) int {
	questions, err := strconv.Atoi(times)
	if err != nil {
		return 2
	}
	waited, err := waitInTurn(netip.MustParseAddrPort(to), name, questions)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	slices.Sort(waited)
	fmt.Println(waited[len(waited)/2].Nanoseconds())
	return 0
}

// waitInTurn asks from a socket that blocks its thread: Go's own wait for sockets is no part of what is measured.
func waitInTurn(to netip.AddrPort, name string, questions int) (waited []time.Duration, err error) {
	message, err := new(wire.Msg).SetQuestion(name, wire.TypeA).Pack()
	if err != nil {
		return nil, err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(socket)
	if err := unix.Connect(socket, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return nil, err
	}
	answer := make([]byte, wire.MinMsgSize)
	for range questions {
		began := time.Now()
		if _, err := raw(unix.SYS_SENDTO, socket, message); err != nil {
			return nil, err
		}
		n, err := raw(unix.SYS_RECVFROM, socket, answer)
		if err != nil || n <= len(message) || answer[3]&15 != wire.RcodeSuccess {
			return nil, fmt.Errorf("an answer of %d bytes: %x, %w", n, answer[:max(0, n)], err)
		}
		waited = append(waited, time.Since(began))
	}
	return waited, nil
}

// raw has the kernel send or fill a buffer as C programs do, without what Go's scheduler does around a system call.
func raw(call uintptr, socket int, buffer []byte) (int, error) {
	n, _, err := unix.RawSyscall6(call, uintptr(socket), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), nil
}

// BenchmarkAPodsQuestion is how long half of a pod's questions wait at most that asks one after the other (p50-us): for what the kernel
// answers, and the responder.
func BenchmarkAPodsQuestion(b *testing.B) {
	c, n, pod, _ := oneNode(b)
	at := netip.AddrPortFrom(c.clusterDNS(n).address(false).Addr(), 53)
	for _, row := range []struct{ name, flag string }{{"kernel", "--dns-fast-path"}, {"responder", "--dns-fast-path=false"}} {
		a := c.agent(n, "--dns", "--dns-service=default/kube-dns", row.flag)
		a.serving()
		a.await("names", func(s agent.Status) bool {
			return s.Names != nil && s.Names.Answering && (row.name != "kernel" || s.Names.Kernel != nil && s.Names.Kernel.Answering)
		})
		c.await("the node answers", func() bool {
			ttl, err := resolve(pod, way{"udp", false}, at, webName)
			return err == nil && ttl == nodesTTL
		})
		b.Run(row.name, func(b *testing.B) {
			p, err := pod.Start("waiter", []string{"/proc/self/exe", at.String(), webName, strconv.Itoa(b.N)}, runAsWaiter+"=1")
			c.must(err)
			<-p.Ended()
			said, err := os.ReadFile(p.Log)
			c.must(err)
			c.must(os.Remove(p.Log))
			var p50 float64
			if _, err := fmt.Sscan(string(said), &p50); err != nil {
				b.Fatalf("it said %s", said)
			}
			b.ReportMetric(p50/1e3, "p50-us")
		})
		c.must(a.Stop())
	}
}
