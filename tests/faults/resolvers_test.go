// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
)

// runAsResolver has this test binary look names up by Go's resolver.
const runAsResolver = "NEARLB_TEST_LOOK_UP"

// lookUpMain prints the addresses that Go's own resolver finds for names.
func lookUpMain(names []string) int {
	resolver := net.Resolver{PreferGo: true}
	for _, name := range names {
		found, err := resolver.LookupNetIP(context.Background(), "ip", name)
		fmt.Println("#", name, err)
		for _, a := range found {
			fmt.Println(a.Unmap())
		}
	}
	return 0
}

// runAsNobody has this test binary be a name server that denies all names, as a cluster's upstream does for most of a search list's. (A refusal
// would have musl wait for another answer.)
const runAsNobody = "NEARLB_TEST_DENY_NAMES"

func denyMain(address string) int {
	deny := func(w wire.ResponseWriter, query *wire.Msg) {
		_ = w.WriteMsg(new(wire.Msg).SetRcode(query, wire.RcodeNameError))
	}
	fmt.Println((&wire.Server{Addr: address, Net: "udp", Handler: wire.HandlerFunc(deny)}).ListenAndServe())
	return 1
}

// resolvers are the programs that look names up, each by a resolver of its own: a command line, which the names follow. One prints for each
// name a line with # and the name, and then its addresses.
func resolvers(t *testing.T) map[string][]string {
	t.Helper()
	each := func(command string) []string {
		return []string{"sh", "-c", `for n; do echo "# $n"; ` + command + `; done`}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{
		"Go":    {"env", runAsResolver + "=1", self},
		"glibc": append(each(`getent ahosts "$n"`), "getent"),
		"dig":   append(each(`dig +search +short "$n" A "$n" AAAA`), "dig"),
	}
	program := filepath.Join(t.TempDir(), "lookup")
	if _, err := exec.LookPath("musl-gcc"); err == nil {
		if text, err := exec.Command("musl-gcc", "-static", "-o", program, "testdata/lookup.c").CombinedOutput(); err != nil {
			t.Fatalf("compile for musl: %v\n%s", err, text)
		}
	}
	all["musl"] = append(each(`"$0" "$n"`), program)
	return all
}

// missing says what a resolver's program lacks on this machine; "": nothing.
func missing(resolver string) string {
	for name, needs := range map[string][2]string{"glibc": {"getent", "libc-bin"}, "dig": {"dig", "bind9-dnsutils"}, "musl": {"musl-gcc", "musl-tools"}} {
		if _, err := exec.LookPath(needs[0]); name == resolver && err != nil {
			return fmt.Sprintf("this machine has no %s (Debian's package %s)", needs[0], needs[1])
		}
	}
	return ""
}

// lookUps has a resolver look names up in a pod whose resolv.conf is a file, and gives what it found for each, sorted.
func (c *cluster) lookUps(pod *lab.Pod, resolvConf string, resolver, names []string) map[string][]string {
	c.t.Helper()
	argv := append([]string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolvConf}, resolver...)
	p, err := pod.Start("lookup", append(argv, names...))
	c.must(err)
	defer os.Remove(p.Log)
	<-p.Ended()
	text, err := os.ReadFile(p.Log)
	c.must(err)
	found, name := map[string][]string{}, ""
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "#" {
			name = words[1]
			found[name] = []string{}
		} else if len(words) > 0 {
			if a, err := netip.ParseAddr(words[0]); err == nil { // what else is printed is a comment, or another name
				found[name] = append(found[name], a.String())
			}
		}
	}
	for name, all := range found {
		slices.Sort(all)
		found[name] = slices.Compact(all)
	}
	if len(found) != len(names) {
		c.t.Fatalf("look up %v: %s", names, text)
	}
	return found
}

// namesToLookUp are Services of either family and of both, and one without ClusterIP of more endpoints than a datagram has room for.
const namesToLookUp = `
{apiVersion: v1, kind: Service, metadata: {name: four, namespace: default}, spec: {clusterIP: 10.96.0.4, clusterIPs: [10.96.0.4], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: six, namespace: default}, spec: {clusterIP: "fd96::6", clusterIPs: ["fd96::6"], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: both, namespace: prod}, spec: {clusterIP: 10.96.0.5, clusterIPs: [10.96.0.5, "fd96::5"], ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: out, namespace: default}, spec: {type: ExternalName, externalName: both.prod.svc.example.test}}
---
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: default}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-4, namespace: default, labels: {kubernetes.io/service-name: db}}, addressType: IPv4,
 ports: [{port: 80}], endpoints: [{addresses: [10.244.9.1], hostname: db-0}, {addresses: [10.244.9.2]}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: db-6, namespace: default, labels: {kubernetes.io/service-name: db}}, addressType: IPv6,
 ports: [{port: 80}], endpoints: [{addresses: ["fd00:9::1"], hostname: db-0}]}
---
{apiVersion: v1, kind: Service, metadata: {name: many, namespace: default}, spec: {clusterIP: None, ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: many-4, namespace: default, labels: {kubernetes.io/service-name: many}}, addressType: IPv4,
 ports: [{port: 80}], endpoints: [%s]}
`

// manyEndpoints are too many for a datagram of 512 bytes.
const manyEndpoints = 60

// found is what a Pod of the Namespace default finds.
var found = map[string][]string{
	"four":                            {"10.96.0.4"}, // D1, D3
	"six":                             {"fd96::6"},
	"both":                            {}, // of another Namespace (D1)
	"both.prod":                       {"10.96.0.5", "fd96::5"},
	"both.prod.svc":                   {"10.96.0.5", "fd96::5"},
	"both.prod.svc.cluster.local":     {"10.96.0.5", "fd96::5"}, // four dots: by the search list first
	"BOTH.prod.svc.cluster.local.":    {"10.96.0.5", "fd96::5"},
	"db":                              {"10.244.9.1", "10.244.9.2", "fd00:9::1"}, // D4
	"db-0.db":                         {"10.244.9.1", "fd00:9::1"},               // D11
	"10-244-9-2.db":                   {"10.244.9.2"},                            // D9
	"10-1-2-3.prod.pod.cluster.local": {"10.1.2.3"},                              // D8
	"both.prod.svc.example.test":      {"10.96.0.5", "fd96::5"},                  // D19
	"out":                             {"10.96.0.5", "fd96::5"},
	"nobody":                          {},
	"nobody.prod":                     {},
}

// What pods look names up with finds the same, whoever answers: by a name server of either family, in the kernel and by the responder.
func TestEveryResolverFindsNames(t *testing.T) {
	c, n, pod, _ := oneNode(t)
	upstream := c.pod(n, "upstream")
	_, err := upstream.Start("dns", []string{"/proc/self/exe", ":53"}, runAsNobody+"=1")
	c.must(err)
	cluster := c.clusterDNS(n, "--upstream", netip.AddrPortFrom(upstream.V4, 53).String())
	endpoints, want := make([]string, 0, manyEndpoints), map[string][]string{"many": {}}
	for i := range manyEndpoints {
		address := fmt.Sprintf("10.244.8.%d", i+1)
		endpoints, want["many"] = append(endpoints, "{addresses: ["+address+"]}"), append(want["many"], address)
	}
	slices.Sort(want["many"])
	c.must(os.WriteFile(filepath.Join(c.Manifests.Dir, "names.yaml"), fmt.Appendf(nil, namesToLookUp, strings.Join(endpoints, ", ")), 0o600))
	var names []string
	for name, addresses := range found {
		names, want[name] = append(names, name), addresses
	}
	slices.Sort(names)
	programs := resolvers(t)
	for _, flag := range []string{"--dns-fast-path=false", "--dns-fast-path"} {
		a := c.agent(n, "--dns", "--dns-service=default/kube-dns", "--dns-zone=cluster.local", flag)
		a.serving()
		for _, six := range []bool{false, true} {
			at := netip.AddrPortFrom(cluster.address(six).Addr(), 53)
			c.await("the node answers", func() bool {
				ttl, err := resolve(pod, way{"udp", six}, at, webName)
				return err == nil && ttl == nodesTTL
			})
			kubelet := dns.Kubelet{Zone: "cluster.local", ClusterDNS: []netip.Addr{cluster.address(six).Addr()}}
			file := filepath.Join(t.TempDir(), "resolv.conf")
			c.must(os.WriteFile(file, []byte(kubelet.NamesOf(lb.NamedPod{Name: lb.PodName{Namespace: "default", Name: "client"}}).String()), 0o600))
			for resolver, program := range programs {
				t.Run(fmt.Sprintf("%s/%s/%v", strings.TrimPrefix(flag, "--"), resolver, cluster.address(six).Addr()), func(t *testing.T) {
					if text := missing(resolver); text != "" {
						t.Skip(text)
					}
					before := c.answeredInTheKernel(n)
					for name, got := range c.lookUps(pod, file, program, append(names, "many")) {
						if name == "many" && resolver == "musl" && len(got) > 0 { // it may not ask by TCP, and has room for 48 at most
							continue
						}
						if !slices.Equal(got, want[name]) {
							t.Errorf("%s: found %v, want %v", name, got, want[name])
						}
					}
					// Each of dig's questions has a cookie, of which the programs know nothing.
					if answered := c.answeredInTheKernel(n) - before; (answered > 0) != (flag == "--dns-fast-path" && resolver != "dig") {
						t.Errorf("the programs answered %d questions", answered)
					}
				})
			}
		}
		c.must(a.Stop())
	}
}
