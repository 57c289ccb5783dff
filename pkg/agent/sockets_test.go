// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/capability"
	"github.com/nearlb/nearlb/tests/privileged"
)

// onSockets are the rows of the cgroup.
func onSockets(rows []attach.DeviceRow) []attach.DeviceRow {
	var found []attach.DeviceRow
	for _, row := range rows {
		if row.Ifindex == 0 && row.Method == attach.CgroupLink {
			found = append(found, row)
		}
	}
	return found
}

// socketPrograms is the number of hooks of a cgroup.
const socketPrograms = 8

// servingSockets waits until the agent has published its one Service, and attached its programs to the cgroup.
func (p *process) servingSockets() {
	p.m.Helper()
	p.await("sockets", func(s Status) bool {
		return s.State == Serving && s.Services == 1 && s.Dirty == 0 && len(onSockets(s.Devices)) == socketPrograms
	})
}

func TestARestartKeepsTheLinksOfSocketsUntilTheyAreSwitchedOff(t *testing.T) {
	for name, end := range map[string]syscall.Signal{"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) { inMachine(t, func(m *machine) { m.restartSockets(end) }) })
	}
}

func (m *machine) restartSockets(signal syscall.Signal) {
	m.manifest("web.yaml", web)
	first := m.agent(nil)
	first.servingSockets()
	before := onSockets(m.devices())
	_ = first.end(signal) // an error, if it is killed
	second := m.agent(func(o *Options) { o.Reload = true })
	second.servingSockets()
	after := onSockets(m.devices())
	if len(before) != socketPrograms || len(after) != socketPrograms {
		m.Fatalf("%d programs before and %d after, want %d", len(before), len(after), socketPrograms)
	}
	for i, row := range after {
		if row.Hook != before[i].Hook || row.Link != before[i].Link || row.ID == before[i].ID || row.Device != m.options.Cgroup {
			m.Errorf("%s: was %+v, is %+v; want the new program under the old link", row.Hook, before[i], row)
		}
	}
	m.must(second.end(syscall.SIGTERM))
	off := m.agent(func(o *Options) { o.SocketLB = attach.NoSockets })
	off.await("no sockets", func(s Status) bool { return s.State == Serving && len(onSockets(m.devices())) == 0 })
	m.must(off.end(syscall.SIGTERM))
}

// echo is a Service of both families and both protocols, whose endpoints have a name each, as answers say.
const echo = `
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: default}
spec:
  clusterIP: 10.96.0.20
  clusterIPs: [10.96.0.20, "fd00:96::20"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports:
  - {name: stream, protocol: TCP, port: 80}
  - {name: datagram, protocol: UDP, port: 80}
`

// echoSlices are the endpoints of numbers, on nodes of theirs.
func echoSlices(numbers ...int) (text string) {
	for family, prefix := range map[string]string{"IPv4": "10.244.9.", "IPv6": "fd00:244:9::"} {
		text += fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-%s, namespace: default, labels: {kubernetes.io/service-name: echo}}
addressType: %s
ports:
- {name: stream, protocol: TCP, port: 8080}
- {name: datagram, protocol: UDP, port: 8080}
endpoints:
`, strings.ToLower(family), family)
		for _, n := range numbers {
			text += fmt.Sprintf("- {addresses: [\"%s%d\"], nodeName: n%d}\n", prefix, n, n)
		}
	}
	return text
}

// endpoint is an address of the machine's own that plays a pod.
func endpoint(six bool, number int) netip.AddrPort {
	address := fmt.Sprintf("10.244.9.%d", number)
	if six {
		address = fmt.Sprintf("fd00:244:9::%d", number)
	}
	return netip.AddrPortFrom(netip.MustParseAddr(address), 8080)
}

// serve answers at an endpoint with its number, by both protocols.
func (m *machine) serve(six bool, number int) {
	m.Helper()
	at := endpoint(six, number)
	lo, err := netlink.LinkByName("lo")
	m.must(err)
	m.must(privileged.AddAddress(lo, netlink.NewIPNet(at.Addr().AsSlice())))
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	streams, err := config.Listen(context.Background(), "tcp", at.String())
	m.must(err)
	datagrams, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	m.must(err)
	m.Cleanup(func() { streams.Close(); datagrams.Close() })
	name := []byte(fmt.Sprint(number))
	go func() {
		for {
			c, err := streams.Accept()
			if err != nil {
				return
			}
			m.Cleanup(func() { c.Close() })
			go func() {
				for b := make([]byte, 16); err == nil; {
					if _, err = c.Read(b); err == nil {
						_, err = c.Write(name)
					}
				}
			}()
		}
	}()
	go func() {
		for b := make([]byte, 16); ; {
			_, client, err := datagrams.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			_, _ = datagrams.WriteToUDPAddrPort(name, client)
		}
	}()
}

// client is a connected socket of the machine, and who answers it.
type client struct {
	net.Conn
	server string
}

// clients connect from inside the cgroup, and ask who is there.
func (m *machine) clients(number int, network string, to netip.AddrPort) []*client {
	m.Helper()
	m.must(privileged.JoinCgroup(m.options.Cgroup))
	defer func() { m.must(privileged.LeaveCgroup(m.options.Cgroup)) }()
	var all []*client
	for range number {
		conn, err := net.Dial(network, to.String())
		m.must(err)
		m.Cleanup(func() { conn.Close() })
		m.must(conn.SetDeadline(time.Now().Add(patience)))
		c := &client{Conn: conn}
		c.server, err = c.ask()
		m.must(err)
		all = append(all, c)
	}
	return all
}

func (c *client) ask() (string, error) {
	if _, err := c.Write([]byte("who")); err != nil {
		return "", err
	}
	b := make([]byte, 16)
	n, err := c.Read(b)
	return string(b[:n]), err
}

// keeps checks that the client still speaks with whom it spoke with.
func (m *machine) keeps(c *client) {
	m.Helper()
	if server, err := c.ask(); err != nil || server != c.server {
		m.Errorf("%s client of %s at server %s: answered by %q, %v", c.RemoteAddr().Network(), c.RemoteAddr(), c.server, server, err)
	}
}

func TestUDPClientsLearnThatTheirBackendLeftAndTCPIsLeftAlone(t *testing.T) {
	inMachine(t, func(m *machine) {
		for _, six := range []bool{false, true} {
			for number := 1; number <= 2; number++ {
				m.serve(six, number)
			}
		}
		m.manifest("echo.yaml", echo+echoSlices(1, 2))
		agent := m.agent(nil)
		agent.servingSockets()
		var ended, others []*client
		for six, vip := range map[bool]string{false: "10.96.0.20", true: "fd00:96::20"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
			for _, c := range m.clients(16, "udp", to) {
				if c.server == "1" {
					ended = append(ended, c)
				} else {
					others = append(others, c)
				}
			}
			others = append(others, m.clients(16, "tcp", to)...)
			others = append(others, m.clients(1, "udp", endpoint(six, 1))...) // named the server itself
		}
		m.manifest("echo.yaml", echo+echoSlices(2))
		if len(ended) == 0 {
			t.Fatal("no client of 32 is at server 1")
		}
		for _, c := range ended {
			if _, err := c.Read(make([]byte, 16)); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a client of %s whose server left: %v, want %v", c.RemoteAddr(), err, unix.ECONNABORTED)
			}
		}
		for _, c := range others {
			m.keeps(c)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

// color is a Service with one server, at external IPs or not.
func color(name string, server int, external ...string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  clusterIP: 10.96.0.3%[2]d
  clusterIPs: [10.96.0.3%[2]d, "fd00:96::3%[2]d"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  externalIPs: [%[3]s]
  ports:
  - {name: stream, protocol: TCP, port: 80}
  - {name: datagram, protocol: UDP, port: 80}
`, name, server, strings.Join(external, ", ")) + strings.ReplaceAll(echoSlices(server), "echo", name)
}

func TestUDPClientsLearnThatTheirFrontendIsAnotherServices(t *testing.T) {
	inMachine(t, func(m *machine) {
		external := []string{"203.0.113.20", `"2001:db8:113::20"`}
		for _, six := range []bool{false, true} {
			for number := 1; number <= 2; number++ {
				m.serve(six, number)
			}
		}
		m.manifest("blue.yaml", color("blue", 1, external...))
		m.manifest("green.yaml", color("green", 2))
		agent := m.agent(nil)
		agent.await("sockets", func(s Status) bool {
			return s.State == Serving && s.Services == 2 && s.Dirty == 0 && len(onSockets(s.Devices)) == socketPrograms
		})
		var ended, others []*client
		for i, a := range external {
			to := netip.AddrPortFrom(netip.MustParseAddr(strings.Trim(a, `"`)), 80)
			own := netip.AddrPortFrom(netip.MustParseAddr([]string{"10.96.0.31", "fd00:96::31"}[i]), 80)
			ended = append(ended, m.clients(2, "udp", to)...)
			others = append(others, append(m.clients(2, "tcp", to), m.clients(2, "udp", own)...)...)
		}
		m.manifest("blue.yaml", color("blue", 1))
		m.manifest("green.yaml", color("green", 2, external...))
		for _, c := range ended {
			if _, err := c.Read(make([]byte, 16)); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a client of %s: %v, want %v", c.RemoteAddr(), err, unix.ECONNABORTED)
			}
		}
		for _, c := range others {
			m.keeps(c)
		}
		m.must(agent.end(syscall.SIGTERM))
	})
}

// A container that is not given the host's processes, or lacks a capability, finds no socket of a pod.
func TestAnAgentSaysWhatHidesTheSocketsOfPods(t *testing.T) {
	all := capability.Of(unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE)
	for _, test := range []struct {
		name string
		pid  int
		has  capability.Set
		want []string
	}{
		{"nothing", 2, all, nil},
		{"processes", 1, all, []string{"hostPID"}},
		{"the way to them", 2, capability.Of(unix.CAP_SYS_ADMIN), []string{"CAP_SYS_PTRACE"}},
		{"the way in", 2, capability.Of(unix.CAP_SYS_PTRACE), []string{"CAP_SYS_ADMIN"}},
		{"everything", 1, 0, []string{"hostPID", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"}},
	} {
		err := hidesPods(test.pid, test.has)
		for _, word := range []string{"hostPID", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN"} {
			if says := err != nil && strings.Contains(err.Error(), word); says != slices.Contains(test.want, word) {
				t.Errorf("%s: %v; names %s: %t", test.name, err, word, says)
			}
		}
		if (err == nil) != (test.want == nil) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestAnAgentThatMayNotLookForPodsHasATrouble(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.must(unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0)) // of the thread that starts the agent, and so of the agent
		m.manifest("echo.yaml", echo+echoSlices(1))
		agent := m.agent(func(o *Options) { o.SocketLB = attach.AllSockets })
		agent.await("trouble", func(s Status) bool {
			return slices.ContainsFunc(s.Trouble, func(text string) bool {
				return strings.HasPrefix(text, "find UDP clients in pods: ") && strings.Contains(text, "CAP_SYS_PTRACE")
			})
		})
		m.must(agent.end(syscall.SIGTERM))
		if log := agent.log.String(); strings.Count(log, "find UDP clients in pods") != 1 {
			t.Errorf("not told once:\n%s", log)
		}
	})
}

// While no agent runs, nobody sees a backend go.
func TestAnAgentThatComesBackEndsClientsOfBackendsThatLeftMeanwhile(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.serve(false, 1)
		m.serve(false, 2)
		m.manifest("echo.yaml", echo+echoSlices(1))
		first := m.agent(nil)
		first.servingSockets()
		clients := m.clients(4, "udp", netip.MustParseAddrPort("10.96.0.20:80"))
		_ = first.end(syscall.SIGKILL)
		m.manifest("echo.yaml", echo+echoSlices(2))
		for _, c := range clients {
			m.keeps(c)
		}
		second := m.agent(nil)
		for _, c := range clients {
			if _, err := c.Read(make([]byte, 16)); !errors.Is(err, unix.ECONNABORTED) {
				t.Errorf("a client whose server left: %v, want %v", err, unix.ECONNABORTED)
			}
		}
		if again := m.clients(1, "udp", netip.MustParseAddrPort("10.96.0.20:80")); again[0].server != "2" {
			t.Errorf("a new client is at server %s", again[0].server)
		}
		m.must(second.end(syscall.SIGTERM))
	})
}
