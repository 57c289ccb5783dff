// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/cgroup"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/rig"
)

// What a flood is made of, and what it may cost. The names alone would take the limit several times.
const (
	memoryLimit   = 64 << 20
	floodNames    = 30_000
	silentNames   = 2_000 // more than the responder lets wait at a time
	burst         = 64    // questions that a flooder has on the way
	largeAnswer   = 1024  // bytes of a record
	floodedName   = "web.prod.svc.cluster.local."
	popularName   = "popular.example.org."
	silentLabel   = "silent-"
	floodedObject = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: prod}
spec: {clusterIP: 10.96.0.10, ports: [{name: http, port: 80}]}
`
)

// A name server whose memory is limited lives on under floods of names that nobody asked for before, and answers those that matter: of
// the cluster, and outside of it without asking anew.
func TestFloodsOfRandomNamesStayWithinTheMemoryThatThereIs(t *testing.T) {
	privileged.Require(t)
	upstream := startUpstream(t)
	s := startLimited(t, upstream.address)
	popular := s.asksForPopular()
	popular.more(20)
	for _, flood := range []struct {
		what, suffix string
		qtype        uint16
	}{
		{"names that the cluster does not have", ".prod.svc.cluster.local.", wire.TypeA},
		{"large answers", ".example.org.", wire.TypeTXT},
	} {
		if answered := s.flood(floodNames, "", flood.suffix, flood.qtype); answered < floodNames*9/10 {
			t.Errorf("%s: %d of %d questions were answered", flood.what, answered, floodNames)
		}
		s.checkMemory(flood.what)
	}
	s.flood(silentNames, silentLabel, ".example.org.", wire.TypeA)
	popular.more(20)
	s.checkMemory("names whose server is silent")
	popular.end()
	if asked := upstream.popular.Load(); asked > 5 {
		t.Errorf("the upstream was asked %d times for a name that is asked for all the time", asked)
	}
}

// upstream is a name server that answers everything: a TXT record that is large, or an address. Of silent names it says nothing.
type upstream struct {
	address string
	popular atomic.Int64
}

func startUpstream(t *testing.T) *upstream {
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	u := &upstream{address: socket.LocalAddr().String()}
	go func() {
		buffer := make([]byte, wire.DefaultMsgSize)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if answer := u.answer(buffer[:n]); answer != nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
	return u
}

func (u *upstream) answer(message []byte) []byte {
	q := new(wire.Msg)
	if q.Unpack(message) != nil || len(q.Question) != 1 {
		return nil
	}
	name := strings.ToLower(q.Question[0].Name)
	if strings.HasPrefix(name, silentLabel) {
		return nil
	}
	if name == popularName {
		u.popular.Add(1)
	}
	header := wire.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: wire.ClassINET, Ttl: 3600}
	m := new(wire.Msg).SetReply(q)
	if header.Rrtype == wire.TypeTXT {
		part := strings.Repeat("x", largeAnswer/4-1)
		m.Answer = append(m.Answer, &wire.TXT{Hdr: header, Txt: []string{part, part, part, part}})
	} else {
		m.Answer = append(m.Answer, &wire.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)})
	}
	out, _ := m.Pack()
	return out
}

// limited is a name server in a process of its own that may have memoryLimit.
type limited struct {
	*testing.T
	address string
	command *exec.Cmd
	group   string // its cgroup; "": this machine lets us make none
	ended   chan struct{}
}

func startLimited(t *testing.T, upstream string) *limited {
	t.Helper()
	self, err := os.Executable()
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	if err = errors.Join(err, os.WriteFile(objects, []byte(floodedObject), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := &limited{T: t, group: memoryGroup(t), ended: make(chan struct{})}
	joins := os.DevNull
	if s.group != "" {
		joins = filepath.Join(s.group, "cgroup.procs")
	}
	s.command = exec.Command("sh", "-c", `echo $$ >"$0" && exec "$@"`, joins, self, "dns", "serve", "-f", objects, "--listen", "127.0.0.1:0", "--upstream", upstream)
	s.command.Env = append(os.Environ(), runAsCLI+"=1")
	s.command.Stderr = os.Stderr
	s.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.command.StdoutPipe()
	if err = errors.Join(err, s.command.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	line, err := bufio.NewReader(out).ReadString('\n')
	go func() { _ = s.command.Wait(); close(s.ended) }()
	address, ok := strings.CutPrefix(strings.TrimSpace(line), "serving ")
	if !ok {
		t.Fatalf("said %q, %v", line, err)
	}
	s.address = address
	return s
}

// end sees that the server lived until now.
func (s *limited) end() {
	select {
	case <-s.ended:
		s.Errorf("the name server ended by itself: %v", s.command.ProcessState)
	default:
		_ = s.command.Process.Signal(syscall.SIGTERM)
		<-s.ended
		if !s.command.ProcessState.Success() {
			s.Errorf("the name server ended: %v", s.command.ProcessState)
		}
	}
	if s.group != "" {
		if err := lab.Await(patience, func() bool { return !errors.Is(os.Remove(s.group), syscall.EBUSY) }); err != nil {
			s.Error(err)
		}
	}
}

// memoryGroup makes a cgroup of memoryLimit, by either version of cgroups; "" where this machine lets us make none.
func memoryGroup(t *testing.T) string {
	t.Helper()
	if mount, err := cgroup.Find(); err == nil {
		if controllers, err := os.ReadFile(filepath.Join(mount.Point, "cgroup.subtree_control")); err == nil && strings.Contains(string(controllers), "memory") {
			return makeGroup(t, mount.Point, "memory.max")
		}
	}
	const former = "/sys/fs/cgroup/memory"
	if _, err := os.Stat(filepath.Join(former, "memory.limit_in_bytes")); err == nil {
		return makeGroup(t, former, "memory.limit_in_bytes")
	}
	t.Log("no cgroup limits the memory here: what the process has of its own is looked at alone")
	return ""
}

func makeGroup(t *testing.T, parent, limit string) string {
	t.Helper()
	group := filepath.Join(parent, fmt.Sprintf("nearlb-test-%d", os.Getpid()))
	err := os.Mkdir(group, 0o755)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		t.Logf("no cgroup limits the memory here: %v", err)
		return ""
	}
	if err = errors.Join(err, os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(memoryLimit)), 0)); err != nil {
		t.Fatal(err, os.Remove(group))
	}
	return group
}

// checkMemory sees that the server lives, and has less memory of its own than the limit: with or without a cgroup.
func (s *limited) checkMemory(after string) {
	s.Helper()
	memory, err := rig.OwnMemory(s.command.Process.Pid)
	if err != nil {
		s.Fatalf("after %s the server is gone: %v", after, err)
	}
	if s.Logf("after %s: %d kB of its own", after, memory>>10); memory > memoryLimit {
		s.Errorf("after %s: %d kB of its own, want at most %d", after, memory>>10, memoryLimit>>10)
	}
}

// flood asks for random names, as a client of its own, and tells how many were answered. It waits for no answer of silent ones.
func (s *limited) flood(names int, prefix, suffix string, qtype uint16) (answered int) {
	s.Helper()
	socket, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(s.address)))
	if err != nil {
		s.Fatal(err)
	}
	defer socket.Close()
	random, buffer := rand.New(rand.NewPCG(1, uint64(qtype))), make([]byte, wire.DefaultMsgSize)
	for sent := 0; sent < names; sent += burst {
		for range burst {
			q := new(wire.Msg).SetQuestion(fmt.Sprintf("%s%x%s", prefix, random.Uint64(), suffix), qtype)
			q.SetEdns0(1232, false)
			message, err := q.Pack()
			if err == nil {
				_, err = socket.Write(message)
			}
			if err != nil {
				s.Fatal(err)
			}
		}
		for got := 0; prefix != silentLabel && got < burst; got++ {
			_ = socket.SetReadDeadline(time.Now().Add(resolverTime))
			if _, err := socket.Read(buffer); err != nil {
				break // one was lost on the way
			}
			answered++
		}
	}
	return answered
}

// popular is a client that goes on asking for names that matter.
type popular struct {
	*limited
	answered, again atomic.Int64
	stop            chan struct{}
	failed          chan error
}

func (s *limited) asksForPopular() *popular {
	p := &popular{limited: s, stop: make(chan struct{}), failed: make(chan error, 1)}
	go func() { p.failed <- p.ask() }()
	return p
}

// ask asks as a resolver does: once more where nobody answered.
func (p *popular) ask() error {
	for {
		for _, name := range []string{floodedName, popularName} {
			err := askAt(p.address, name, resolverTime)
			if err != nil {
				p.again.Add(1)
				err = askAt(p.address, name, resolverTime)
			}
			if err != nil {
				return fmt.Errorf("after %d answers: %w", p.answered.Load(), err)
			}
			p.answered.Add(1)
		}
		select {
		case <-p.stop:
			return nil
		case <-time.After(pace):
		}
	}
}

// more waits for so many further answers.
func (p *popular) more(answers int64) {
	p.Helper()
	want := p.answered.Load() + answers
	if err := lab.Await(patience, func() bool { return p.answered.Load() >= want || len(p.failed) > 0 }); err != nil {
		p.Fatal(err)
	}
}

func (p *popular) end() {
	p.Helper()
	close(p.stop)
	if err := <-p.failed; err != nil {
		p.Errorf("a name that matters: %v", err)
	}
	p.Logf("%d questions for names that matter were answered, %d of them when asked twice", p.answered.Load(), p.again.Load())
}
