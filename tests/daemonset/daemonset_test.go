// SPDX-License-Identifier: Apache-2.0

package daemonset_test

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/daemonset"
	"github.com/nearlb/nearlb/tests/logs"
	"github.com/nearlb/nearlb/tests/privileged"
)

const patience = 2 * time.Minute // long, so that only what never comes is a failure

// node is a node with an agent as the DaemonSet has it, but for the objects, which come from the lab's directory.
type node struct {
	*testing.T
	*lab.Lab
	node  *lab.Node
	set   daemonset.Set
	pod   daemonset.Pod
	agent *lab.Process
}

func newNode(t *testing.T, flags ...string) *node {
	t.Helper()
	privileged.Require(t)
	text, err := os.ReadFile("../../manifests/base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t}
	n.set, err = daemonset.Read(text)
	n.must(err)
	n.set.Agent.Args = append(append(n.set.Agent.Args, "--manifests=/manifests"), flags...)
	n.pod.Program, err = daemonset.Program()
	n.must(err)
	n.Lab, err = lab.New(lab.Options{})
	n.must(err)
	t.Cleanup(func() {
		if t.Failed() {
			logs.Show(t, n.Dir)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	n.node, err = n.AddNode(lab.NodeOptions{Name: "n1", Zone: "a"})
	n.must(err)
	n.must(n.Manifests.Write("node.yaml", n.node.Object()))
	n.pod.Host, err = daemonset.Hostlike(n.Lab, n.node)
	n.must(err)
	n.pod.Extra = map[string]string{"/manifests": n.Manifests.Dir}
	return n
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// start starts the agent and waits until it serves.
func (n *node) start() {
	n.Helper()
	var err error
	n.agent, err = n.set.Start(n.node, n.pod)
	n.must(err)
	n.await("serving", func(s agent.Status) bool { return s.State == agent.Serving && s.Dirty == 0 })
}

func (n *node) await(what string, wanted func(agent.Status) bool) agent.Status {
	n.Helper()
	var s agent.Status
	var err error
	if lab.Await(patience, func() bool {
		s, err = agent.ReadStatus(n.pod.Host["/run/nearlb"], daemonset.PinPath)
		return err == nil && s.PID == n.agent.PID() && wanted(s)
	}) != nil {
		n.Fatalf("%s: the status is %+v, %v", what, s, err)
	}
	return s
}

func (n *node) exec(args ...string) string {
	n.Helper()
	out, err := n.set.Exec(n.node, n.pod, args...)
	if err != nil {
		n.Fatalf("nearlb %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// service serves TCP and UDP of one pod on one cluster address of each family.
func (n *node) service(number int, servers ...*lab.Pod) lab.Service {
	n.Helper()
	s := lab.Service{
		Name:       fmt.Sprintf("web%d", number),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(number)}), netip.MustParseAddr(fmt.Sprintf("fd96::%x", number))},
		Ports:      []lab.Port{{Name: "tcp", Protocol: "TCP", Port: 80}, {Name: "udp", Protocol: "UDP", Port: 80}},
	}
	slices := lab.Slices{Service: s.Name, Ports: []lab.Port{{Name: "tcp", Protocol: "TCP", Port: 8080}, {Name: "udp", Protocol: "UDP", Port: 8080}}}
	for _, p := range servers {
		slices.Endpoints = append(slices.Endpoints, lab.Endpoint{Pod: p})
	}
	n.must(n.Manifests.Write(s.Name+".yaml", append([]lab.Object{s}, slices.Objects()...)...))
	return s
}

func (n *node) server(name string) *lab.Pod {
	n.Helper()
	p, err := n.node.AddPod(name)
	n.must(err)
	_, err = p.Serve(8080)
	n.must(err)
	return p
}

// reaches waits until the client gets answers of the server over TCP and UDP, IPv4 and IPv6.
func (n *node) reaches(client *lab.Host, s lab.Service, server string) {
	n.Helper()
	for _, network := range []string{"tcp", "udp"} {
		for _, address := range s.ClusterIPs {
			var answer lab.Answer
			var err error
			to := netip.AddrPortFrom(address, 80)
			if lab.Await(patience, func() bool {
				answer, err = client.Ask(context.Background(), network, to, lab.DialOptions{})
				return err == nil && answer.Server == server
			}) != nil {
				n.Errorf("%s: %s %s: answered by %q, %v; want %s", client, network, to, answer.Server, err, server)
			}
		}
	}
}

// Flags come from the ConfigMap that the DaemonSet mounts, behind the command line's; of a change the agent says that it wants a restart.
func TestTheConfigMapHasFlagsOfTheAgent(t *testing.T) {
	n := newNode(t)
	n.pod.Config = map[string]string{"zone": "b\n", "manifests": "/elsewhere"}
	n.start()
	n.await("the ConfigMap's zone", func(s agent.Status) bool { return s.Node.Zone == "b" && len(s.Trouble) == 0 })
	n.pod.Config["zone"] = "c"
	n.must(n.pod.WriteConfig())
	n.await("that a restart is needed", func(s agent.Status) bool {
		return s.Node.Zone == "b" && slices.ContainsFunc(s.Trouble, func(text string) bool { return strings.Contains(text, `zone is "c"`) })
	})
	n.must(n.agent.Stop())
	n.start()
	n.await("the new zone", func(s agent.Status) bool { return s.Node.Zone == "c" && len(s.Trouble) == 0 })
	n.must(n.agent.Stop())
}

// What an agent has without privilege is enough for everything that it does while it runs, and for what kubectl exec asks.
func TestTheAgentDoesItsWorkWithWhatTheDaemonSetGivesIt(t *testing.T) {
	n := newNode(t, "--audit-interval=500ms")
	client, one, two := n.server("client"), n.server("one"), n.server("two")
	s := n.service(1, one)
	n.start()
	n.dropped()
	n.reaches(&client.Host, s, "one")
	n.reaches(&n.node.Host, s, "one")

	late := n.server("late") // a device that comes
	n.reaches(&late.Host, s, "one")
	n.layer3()
	n.leavesBackend(s, two)
	n.audits()
	n.commands()

	before := n.exec("devices", "-o", "json")
	n.must(n.agent.Stop())
	n.reaches(&client.Host, s, "two")
	n.start() // with the same settings it uses the programs that it finds
	after := ""
	if lab.Await(patience, func() bool {
		after = n.exec("devices", "-o", "json")
		return slices.Equal(links(t, before), links(t, after))
	}) != nil {
		t.Errorf("the second agent: want the first one's links and programs\nbefore %s\nafter %s", before, after)
	}
	n.reaches(&client.Host, s, "two")

	n.must(n.agent.Stop())
	if out := n.exec("cleanup"); !strings.Contains(out, "removed "+daemonset.PinPath) {
		t.Errorf("cleanup: %s", out)
	}
	if out := n.exec("devices"); !strings.Contains(out, "No devices") {
		t.Errorf("after cleanup: %s", out)
	}
}

// dropped looks at every thread.
func (n *node) dropped() {
	n.Helper()
	const kept = "0000008000001400"      // BPF, NET_ADMIN, NET_BIND_SERVICE
	const container = "000000c000001400" // and PERFMON: nobody may lower this set who lacks SETPCAP, and nobody gains by it
	want := map[string]string{"CapInh": "0000000000000000", "CapPrm": kept, "CapEff": kept, "CapBnd": container, "CapAmb": "0000000000000000", "NoNewPrivs": "1"}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", n.agent.PID()))
	if err != nil || len(threads) == 0 {
		n.Fatal("no threads", err)
	}
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the thread ended
		}
		for line := range strings.Lines(string(text)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if wanted := want[key]; wanted != "" && strings.TrimSpace(value) != wanted {
				n.Errorf("%s: %s, want %s", path, strings.TrimSpace(line), wanted)
			}
		}
	}
	may := n.await("what it kept", func(agent.Status) bool { return true }).May
	if !slices.Equal(may, []string{"CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_BPF"}) {
		n.Errorf("the status says that it kept %v", may)
	}
	log, err := os.ReadFile(n.agent.Log)
	if err != nil || !strings.Contains(string(log), "capabilities=CAP_NET_BIND_SERVICE,CAP_NET_ADMIN,CAP_BPF") {
		n.Errorf("its log does not say what it kept: %v", err)
	}
}

// layer3 adds a device without an Ethernet header, which has programs of its own.
func (n *node) layer3() {
	n.Helper()
	n.must(n.node.Do(func() error {
		tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN}
		if err := netlink.LinkAdd(tun); err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.9.0.1/32")
		return errors.Join(err, netlink.AddrAdd(tun, address), netlink.LinkSetUp(tun))
	}))
	n.await("programs of tun0", func(s agent.Status) bool {
		on := 0
		for _, row := range s.Devices {
			if row.Device == "tun0" && row.Error == "" && row.Method != "" {
				on++
			}
		}
		return on == 2
	})
}

// leavesBackend: the node's own connected UDP socket is ended when its backend has gone, by SOCK_DESTROY.
func (n *node) leavesBackend(s lab.Service, other *lab.Pod) {
	n.Helper()
	if n.node.Cgroup() == "" {
		n.Log("no cgroup here: sockets of the node are not served")
		n.service(1, other)
		return
	}
	conn, err := n.node.Dial(context.Background(), "udp", netip.AddrPortFrom(s.ClusterIPs[0], 80), lab.DialOptions{})
	n.must(err)
	defer conn.Close()
	if answer, err := conn.Who(); err != nil || answer.Server != "one" {
		n.Fatalf("answered by %v, %v", answer, err)
	}
	n.service(1, other)
	var last error
	if lab.Await(patience, func() bool {
		_, last = conn.Who()
		return errors.Is(last, syscall.ECONNABORTED) || errors.Is(last, syscall.EDESTADDRREQ)
	}) != nil {
		n.Errorf("the socket lives: %v", last)
	}
	n.reaches(&n.node.Host, s, "two")
}

// audits: a hand deletes an entry.
func (n *node) audits() {
	n.Helper()
	drift := n.await("an audit", func(s agent.Status) bool { return !s.LastAudit.IsZero() }).Drift
	n.must(n.Mounted(func() error {
		tables, err := bpf.OpenMaps(filepath.Join(n.pod.Host["/sys/fs/bpf"], "nearlb"), false)
		if err != nil {
			return err
		}
		defer tables.Close()
		var key bpf.NearlbFrontendKey
		if err := tables.Frontends.NextKey(nil, &key); err != nil {
			return err
		}
		return tables.Frontends.Delete(&key)
	}))
	n.await("repair", func(s agent.Status) bool { return s.Drift > drift })
}

// commands are those that kubectl exec is used for.
func (n *node) commands() {
	n.Helper()
	for _, args := range [][]string{{"services"}, {"backends"}, {"flows"}, {"affinity"}, {"verdicts"}, {"status"}, {"check"},
		{"trace", "--from", "pod", "--src", "10.244.1.10", "--dst", "10.96.0.1:80", "--proto", "tcp"}} {
		if out := n.exec(args...); out == "" {
			n.Errorf("nearlb %s prints nothing", strings.Join(args, " "))
		}
	}
	if out, err := n.set.Exec(n.node, n.pod, "bench", "--runs", "1"); err == nil || !strings.Contains(out, "bench is not in the image") {
		n.Errorf("nearlb bench: %q, %v; want it to say that the image has none", out, err)
	}
	var rows []struct{ Program, ProgramTag, Method, Device string }
	n.must(json.Unmarshal([]byte(n.exec("devices", "-o", "json")), &rows))
	sockets := 0
	for _, row := range rows {
		if row.ProgramTag == "" {
			n.Errorf("%s of %s has no tag: its program was not found", row.Program, row.Device)
		}
		if strings.HasPrefix(row.Program, "sock_") {
			sockets++
			if row.Device != "/sys/fs/cgroup" {
				n.Errorf("%s is on cgroup %q, want it by its name", row.Program, row.Device)
			}
		}
	}
	if len(rows) <= sockets || sockets == 0 && n.node.Cgroup() != "" {
		n.Errorf("%d programs, %d of sockets", len(rows), sockets)
	}
}

// links are the programs with their ids, devices and links.
func links(t *testing.T, devices string) (links []string) {
	t.Helper()
	for _, row := range deviceRows(t, devices) {
		links = append(links, fmt.Sprint(row.Program, row.ID, row.Device, row.Link))
	}
	return links
}

func deviceRows(t *testing.T, text string) (rows []attach.DeviceRow) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// What the agent listens on is what docs/install.md says, whatever the Services are; nothing answers off the node but health checks.
func TestTheAgentListensOnDocumentedAddressesAlone(t *testing.T) {
	n := newNode(t)
	server := n.server("one")
	n.service(1, server)
	n.must(n.Manifests.WriteText("balanced.yaml", balanced))
	n.start()
	status := n.await("servers", func(s agent.Status) bool {
		return s.Listen["health"] != "" && s.Listen["metrics"] != "" && len(s.Checks) == 1 && len(s.Checks[0].Listen) > 0
	})
	want := map[string]bool{"[::]:10256": true, "127.0.0.1:10249": true}
	for _, address := range status.Checks[0].Listen {
		want[address.String()] = true
	}
	open := n.listening()
	for _, address := range open {
		if !want[address] {
			t.Errorf("it listens on %s, which is none of %v", address, want)
		}
	}
	if len(open) != len(want) {
		t.Errorf("it listens on %v, want %v", open, want)
	}
}

const balanced = `
apiVersion: v1
kind: Service
metadata: {name: balanced, namespace: default}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  clusterIP: 10.96.0.9
  healthCheckNodePort: 31999
  ports: [{name: http, port: 80, nodePort: 30080}]
`

// listening are the sockets of the agent's process that anybody can send to.
func (n *node) listening() (found []string) {
	n.Helper()
	own := map[string]bool{}
	descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", n.agent.PID()))
	n.must(err)
	for _, path := range descriptors {
		if target, err := os.Readlink(path); err == nil {
			if inode, ok := strings.CutPrefix(target, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "udplite", "udplite6", "raw", "raw6", "packet", "sctp/eps"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", n.agent.PID(), table))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		n.must(err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		for _, line := range lines[1:] {
			fields := strings.Fields(line)
			switch {
			case strings.HasPrefix(table, "tcp"):
				const listen = "0A"
				if fields[3] == listen && own[fields[9]] {
					found = append(found, address(n.T, fields[1]))
				}
			case table == "packet" && own[fields[8]], table == "sctp/eps", strings.HasPrefix(table, "udp") && own[fields[9]], strings.HasPrefix(table, "raw") && own[fields[9]]:
				found = append(found, table+" "+line)
			}
		}
	}
	return found
}

// address reads "0100007F:2809": words of four bytes in the machine's order.
func address(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	bytes, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+4 <= len(bytes); i += 4 {
		binary.BigEndian.PutUint32(bytes[i:], binary.NativeEndian.Uint32(bytes[i:]))
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	ip, _ := netip.AddrFromSlice(bytes)
	return netip.AddrPortFrom(ip, uint16(number)).String()
}

// None of them is there for nothing.
func TestEveryCapabilityOfTheDaemonSetIsNeeded(t *testing.T) {
	n := newNode(t)
	n.must(n.Manifests.WriteText("balanced.yaml", strings.ReplaceAll(balanced, "31999", "999")))
	all := n.set.Agent.SecurityContext.Capabilities.Add
	for _, without := range all {
		n.set.Agent.SecurityContext.Capabilities.Add = slices.DeleteFunc(slices.Clone(all), func(c corev1.Capability) bool { return c == without })
		var err error
		n.agent, err = n.set.Start(n.node, n.pod)
		n.must(err)
		if without == "NET_BIND_SERVICE" {
			n.await("a health check node port below 1024 that nobody may open", func(s agent.Status) bool {
				return slices.ContainsFunc(s.Problems, func(p lb.Problem) bool { return strings.Contains(p.Message, "permission denied") })
			})
			n.must(n.agent.Kill())
			continue
		}
		select {
		case <-n.agent.Ended():
			if n.agent.ExitCode() != 1 {
				t.Errorf("without %s the agent ends with %d", without, n.agent.ExitCode())
			}
		case <-time.After(patience):
			t.Errorf("without %s the agent starts as well", without)
			n.must(n.agent.Kill())
		}
	}
	n.set.Agent.SecurityContext.Capabilities.Add = all
	n.start()
	n.await("the health check node port", func(s agent.Status) bool { return len(s.Checks) == 1 && len(s.Checks[0].Listen) > 0 })
}

// The init container's command, on a node where nobody mounted a bpffs, and again where somebody did.
func TestTheInitContainerMountsABpffsWhereThereIsNone(t *testing.T) {
	n := newNode(t)
	init := n.set.Spec.Template.Spec.InitContainers[0]
	mount := n.pod.Program + " " + strings.Join(init.Args, " ")
	p, err := n.node.Start("mount", []string{"unshare", "--mount", "--propagation", "private", "sh", "-ec",
		"while umount --quiet /sys/fs/bpf; do :; done; stat -f -c %T /sys/fs/bpf; " + mount + "; " + mount + "; stat -f -c %T /sys/fs/bpf"})
	n.must(err)
	<-p.Ended()
	out, err := os.ReadFile(p.Log)
	if want := "sysfs\nmounted a bpffs on /sys/fs/bpf\nbpf_fs\n"; err != nil || string(out) != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}
