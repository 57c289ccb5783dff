// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/cluster/workload/client"
	"github.com/nearlb/nearlb/tests/cluster/workload/server"
)

// Nine clusters take five minutes of two processors: `make cni` asks for them, and writes docs/cni.md if all were asked for.
func TestServicesWorkBesideEveryNetwork(t *testing.T) {
	wanted(t, "NEARLB_CNI", "make cni")
	chosen, err := regexp.Compile(os.Getenv("NETWORKS"))
	must(t, err)
	var rows []cniRow
	for _, network := range kube.Networks {
		if chosen.MatchString(network.Name) {
			rows = append(rows, worksBeside(t, network))
		}
	}
	if file := os.Getenv("NEARLB_CNI_OUT"); file != "" {
		must(t, os.WriteFile(file, []byte(cniDocument(rows, os.Getenv("NEARLB_CNI_VERSION"))), 0o644))
	}
}

// A network that somebody brings in a directory, as package kube says: `make cni FROM=DIR`.
func TestServicesWorkBesideTheNetworkThatIsGiven(t *testing.T) {
	wanted(t, "NEARLB_CNI_FROM", "make cni FROM=DIR")
	network, err := kube.GivenNetwork(os.Getenv("NEARLB_CNI_FROM"))
	must(t, err)
	worksBeside(t, network)
}

// worksBeside holds connections of every kind while it checks what depends on a network.
func worksBeside(t *testing.T, network kube.Network) cniRow {
	row := cniRow{network: network}
	t.Run(network.Name, func(t *testing.T) {
		s := start(t, network)
		s.install()
		s.serve()
		s.kubectl("apply", "-f", "testdata/far.yaml")
		s.kubectl("wait", "--for=condition=Ready", "pod/web-far", limit)
		for i, check := range cniChecks {
			row.passed[i] = t.Run(check.name, func(t *testing.T) { check.run(s.of(t)) })
		}
		if network.Given != nil && network.Given.Policies {
			t.Run("NetworkPolicies", func(t *testing.T) { keepPolicies(s.of(t)) })
		}
		s.awaitAnswers()
		row.held = !t.Failed()
	})
	return row
}

// cniChecks are what depends on how pods are connected, beside that connections of every kind are held.
var cniChecks = [...]struct {
	name string
	run  func(*smoke)
}{
	{"a pod reaches itself by its Service", reachItself},
	{"100 kB and fragments, to other nodes", reachFar},
	{"a host port", reachHostPort},
	{"beyond the cluster", reachBeyond},
}

// of is the cluster in a part of its test.
func (s *smoke) of(t *testing.T) *smoke {
	part := *s
	part.T = t
	return &part
}

// fromPod asks from a pod and wants answers that begin so.
func (s *smoke) fromPod(pod, want string, arguments ...string) {
	s.Helper()
	s.await(pod+" asks "+strings.Join(arguments, " "), func() error {
		out, err := s.Kubectl(s.Context(), append([]string{"exec", pod, "--", "/workload", "ask"}, arguments...)...)
		for line := range strings.Lines(out) {
			if _, answer, _ := strings.Cut(line, " "); err == nil && !strings.HasPrefix(answer, want) {
				err = fmt.Errorf("answer %q, want %s", line, want)
			}
		}
		return err
	})
}

// urls are those of a port at addresses, over TCP and UDP.
func urls(port uint16, addresses ...netip.Addr) []string {
	return append(urlsOf("tcp", port, addresses...), urlsOf("udp", port, addresses...)...)
}

func urlsOf(network string, port uint16, addresses ...netip.Addr) (all []string) {
	for _, a := range addresses {
		all = append(all, network+"://"+netip.AddrPortFrom(a, port).String())
	}
	return all
}

// The addresses of the Services near and far (testdata).
var (
	near = []netip.Addr{netip.MustParseAddr("10.96.0.81"), netip.MustParseAddr("fd96::81")}
	far  = []netip.Addr{netip.MustParseAddr("10.96.0.82"), netip.MustParseAddr("fd96::82")}
)

// reachItself: on each node there is one server, and the Service leads to that of the node alone.
func reachItself(s *smoke) {
	for _, pod := range strings.Fields(s.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.name}")) {
		s.fromPod(pod, pod+" ", append([]string{"-times", "3"}, urls(80, near...)...)...)
	}
}

// Questions that no packet holds: segments over TCP, fragments over UDP.
const (
	manySegments  = 100_000
	manyFragments = 6000
)

// reachFar asks the server of another node, with more than fits into a packet, from a pod, and from outside through a third node.
func reachFar(s *smoke) {
	for network, more := range map[string]int{"tcp": manySegments, "udp": manyFragments} {
		s.fromPod("from-pod", "web-far ", append([]string{"-more", strconv.Itoa(more)}, urlsOf(network, 80, far...)...)...)
		for _, a := range []netip.Addr{s.Nodes[0].V4, s.Nodes[0].V6} {
			s.fromOutside(network, netip.AddrPortFrom(a, 30082), more)
		}
	}
}

// fromOutside wants an answer of the server on n3.
func (s *smoke) fromOutside(network string, to netip.AddrPort, more int) {
	s.Helper()
	s.await(fmt.Sprintf("from outside, %s %s, %d bytes", network, to, more), func() error {
		c, err := s.outside.dial(network, to)
		if err != nil {
			return err
		}
		defer c.Close()
		c.More = more
		if err = c.ask(client.Attempt); err == nil && !strings.HasPrefix(c.who, "web-far ") {
			err = fmt.Errorf("answer %q", c.who)
		}
		return err
	})
}

// reachHostPort: the plugin portmap has rules of netfilter for it, which nearlb is to leave alone.
func reachHostPort(s *smoke) {
	for _, a := range []netip.Addr{s.Nodes[2].V4, s.Nodes[2].V6} {
		s.fromOutside("tcp", netip.AddrPortFrom(a, 8090), 0)
		s.fromOutside("udp", netip.AddrPortFrom(a, 8090), 0)
		s.fromPod("from-pod", "web-far ", urls(8090, a)...)
	}
}

// reachBeyond: with ipMasq the server sees the node, without it the pod.
func reachBeyond(s *smoke) {
	host := s.outside.host
	for _, a := range []netip.Addr{host.V4, host.V6} {
		var listener net.Listener
		must(s.T, host.Do(func() (err error) {
			listener, err = net.Listen("tcp", netip.AddrPortFrom(a, 0).String())
			return err
		}))
		s.Cleanup(func() { _ = listener.Close() })
		go server.Accept(listener, "beyond")
		to := "tcp://" + listener.Addr().String()
		s.fromPod("from-pod", "beyond ", "-times", "20", to)
	}
}

// cniRow is what became of one network.
type cniRow struct {
	network kube.Network
	held    bool
	passed  [len(cniChecks)]bool
}

// cniDocument is docs/cni.md.
func cniDocument(rows []cniRow, version string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<!-- made by make cni -->
# Beside CNI plugins

Tried on three nodes with kubelet and containerd, dual stack, nearlb installed as docs/install.md says in kube-proxy's place, with its default settings: nothing is to be set for any of them. %s, nearlb %s.

Each network: connections over TCP and UDP, IPv4 and IPv6, from a pod, from a node and from outside, to cluster IPs, node ports of every node, external IPs and addresses of a load balancer,
with traffic policies Cluster and Local, are held from before the other columns to after them.

| network | connections of every kind |`, time.Now().UTC().Format(time.DateOnly), version)
	for _, check := range cniChecks {
		fmt.Fprintf(&b, " %s |", check.name)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(cniChecks)) + "\n")
	for _, row := range rows {
		fmt.Fprintf(&b, "| %s | %s |", row.network.Name, verdict(row.held))
		for _, passed := range row.passed {
			fmt.Fprintf(&b, " %s |", verdict(passed))
		}
		b.WriteString("\n")
	}
	b.WriteString(`
The plugins are the reference ones (Debian's containernetworking-plugins) with host-local and portmap. "bridge" is without hairpinMode, by which a bridge may send a packet back to the port that it came
from: nearlb does not need it, as a pod's connection to itself goes by the host's stack. Over VXLAN there is always ipMasq: what is between the nodes does not know pods' addresses, so that without it a pod
reaches no node's address, with any proxy.

flannel is the daemon of its module, v0.28.10, in a DaemonSet, with --ip-masq, hairpinMode and its rules by iptables and by nftables; for host-gw the nodes are on one segment, for VXLAN they are not. Its own CNI plugin
is a module apart: the tests write the configuration that it has the plugin bridge called with.

Another network, or an engine of NetworkPolicies: "make cni FROM=DIR" runs the same beside what a directory describes by images, manifests and plugins (type Given in tests/cluster/kube). Beside an engine that keeps
policies, pods that one lets in reach a server through its Service, the others do not, and pods that may go to one server only reach that one through its Service and no other: on the server's node and from another.
nearlb translates before the rules of the node, so that an engine sees the server's address where the client's packet leaves its pod, and the client's own where it comes to the server.

Run so by hand in November 2026, from the sources of that summer, policies among it, each works with nothing set: kube-router (its routes by BGP and its bridge; its policies alone beside ptp), and Calico's
plugin and Felix, unencapsulated, with iptables and with nftables (Kubernetes as datastore, addresses of host-local, no BIRD).

Not run: kindnet and sigs.k8s.io/kube-network-policies, by which policies are kept as well: both have packets handed to them by nftables' queue (CONFIG_NFT_QUEUE), which the kernel of the machine that this was made on lacks; and Calico over VXLAN.
Cilium serves Services itself.
`)
	return b.String()
}

func verdict(good bool) string {
	if good {
		return "works"
	}
	return "FAILED"
}
