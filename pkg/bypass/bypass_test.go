// SPDX-License-Identifier: Apache-2.0

package bypass_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/tests/privileged"
)

func shell(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// devices are a pod's and one towards other hosts, in a namespace whose reverse path filters are off.
func devices(t *testing.T) []bypass.Device {
	t.Helper()
	shell(t, "ip link add pod type veth peer name inside; ip link add net type veth peer name outside; for c in /proc/sys/net/ipv4/conf/*; do echo 0 > $c/rp_filter; done")
	found := []bypass.Device{}
	for _, d := range []bypass.Device{{Name: "pod", Pod: true}, {Name: "net"}} {
		l, err := netlink.LinkByName(d.Name)
		if err != nil {
			t.Fatal(err)
		}
		d.Ifindex = l.Attrs().Index
		found = append(found, d)
	}
	return found
}

// Whatever would see a forwarded packet is found, by name, and the kernel tells of it at once but where it says nothing.
func TestWhatSeesForwardedPacketsIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		tool, make, want string
		silent           bool // there is no news of it
	}{
		"a rule in FORWARD":                   {tool: "nft", make: "nft 'add table ip t; add chain ip t f {type filter hook forward priority 0;}; add rule ip t f counter'", want: "nftables chain ip t f"},
		"a policy to drop":                    {tool: "nft", make: "nft 'add table ip6 t; add chain ip6 t f {type filter hook forward priority 0; policy drop;}'", want: "nftables chain ip6 t f"},
		"masquerade":                          {tool: "nft", make: "nft 'add table inet t; add chain inet t p {type nat hook postrouting priority 100;}; add rule inet t p masquerade'", want: "nftables chain inet t p"},
		"a rule of a device":                  {tool: "nft", make: "nft 'add table netdev t; add chain netdev t i {type filter hook ingress device net priority 0;}; add rule netdev t i counter'", want: "nftables chain netdev t i"},
		"a rule of what leaves by a device":   {tool: "nft", make: "nft 'add table netdev t; add chain netdev t e {type filter hook egress device net priority 0;}; add rule netdev t e counter'", want: "nftables chain netdev t e"},
		"a rule of inet at a device":          {tool: "nft", make: "nft 'add table inet t; add chain inet t i {type filter hook ingress device pod priority 0;}; add rule inet t i counter'", want: "nftables chain inet t i"},
		"legacy iptables":                     {tool: "iptables-legacy", make: "iptables-legacy -w -N OTHER", want: "iptables-legacy table filter", silent: true},
		"a strict filter":                     {tool: "sh", make: "echo 1 > /proc/sys/net/ipv4/conf/pod/rp_filter", want: "strict reverse path filter of pod (rp_filter)"},
		"a routing rule":                      {tool: "ip", make: "ip rule add fwmark 7 lookup 100", want: "routing rule 32765: table 100"},
		"a routing rule of v6":                {tool: "ip", make: "ip -6 rule add fwmark 7 lookup 100", want: "routing rule 32765: table 100"},
		"a rule of a mark in a usual place":   {tool: "ip", make: "ip rule add fwmark 7 lookup main pref 32766", want: "routing rule 32766: table 254"},
		"a rule of a device in a usual place": {tool: "ip", make: "ip -6 rule add iif net lookup local pref 0", want: "routing rule 0: table 255"},
		"a rule that leaves routes out":       {tool: "ip", make: "ip rule add lookup main suppress_prefixlength 0 pref 32766", want: "routing rule 32766: table 254"},
		"what a VRF needs":                    {tool: "ip", make: "ip rule add l3mdev pref 1000", want: "routing rule 1000: table 0"},
		"a rule that refuses":                 {tool: "ip", make: "ip -6 rule add from 2001:db8::/32 prohibit pref 5", want: "routing rule 5: table 0"},
		"IPsec for all":                       {tool: "ip", make: "ip xfrm policy setdefault fwd block", want: "IPsec for what no policy is for (ip xfrm policy getdefault)"},
		"IPsec":                               {tool: "ip", make: "ip xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 dir fwd tmpl proto esp mode tunnel", want: "IPsec policies (ip xfrm policy)"},
		"a filter at ingress":                 {tool: "tc", make: "tc qdisc add dev net clsact; tc filter add dev net ingress bpf bytecode '1,6 0 0 0'", want: "TC filter bpf at ingress of net"},
		"a filter of a pod":                   {tool: "tc", make: "tc qdisc add dev pod clsact; tc filter add dev pod egress bpf bytecode '1,6 0 0 0'", want: "TC filter bpf at egress of pod"},
		"a filter of a shared block":          {tool: "tc", make: "tc qdisc add dev net ingress_block 7 ingress; tc filter add block 7 bpf bytecode '1,6 0 0 0'", want: "TC filter bpf at ingress of net"},
		"a filter of the older queue":         {tool: "tc", make: "tc qdisc add dev net ingress; tc filter add dev net parent ffff: u32 match u32 0 0", want: "TC filter u32 at ingress of net"},
		"a filter of another chain":           {tool: "tc", make: "tc qdisc add dev net clsact; tc filter add dev net ingress chain 5 u32 match u32 0 0", want: "TC filter u32 at ingress of net"},
		"a pod's queue":                       {tool: "tc", make: "tc qdisc add dev pod root tbf rate 1mbit burst 32k latency 50ms", want: "queue tbf of pod"},
		"a chain without rules":               {tool: "nft", make: "nft 'add table ip t; add chain ip t f {type filter hook forward priority 0;}'"},
		"a rule in INPUT":                     {tool: "nft", make: "nft 'add table ip t; add chain ip t i {type filter hook input priority 0;}; add rule ip t i counter'"},
		"a queue towards hosts":               {tool: "tc", make: "tc qdisc add dev net root tbf rate 1mbit burst 32k latency 50ms"},
		"a filter that is met":                {tool: "tc", make: "tc qdisc add dev net clsact; tc filter add dev net egress bpf bytecode '1,6 0 0 0'"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(c.tool); err != nil {
				t.Logf("left out: there is no program %s here", c.tool)
				return
			}
			privileged.Namespace(t, func(*os.File) {
				devices := devices(t)
				news, err := bypass.Listen()
				if err != nil {
					t.Fatal(err)
				}
				defer news.Close()
				if found, err := bypass.Look(devices, nil); err != nil || len(found) > 0 {
					t.Fatalf("before anything was made: %q, %v", found, err)
				}
				shell(t, c.make)
				want := []string{}
				if c.want != "" {
					want = append(want, c.want)
				}
				if found, err := bypass.Look(devices, nil); err != nil || !slices.Equal(found, want) {
					t.Errorf("found %q, %v; want %q", found, err, want)
				}
				untold, err := bypass.LookUntold(devices, nil)
				if err != nil || c.silent != (len(untold) > 0) {
					t.Errorf("of what nobody tells news of: %q, %v", untold, err)
				}
				if c.silent {
					return
				}
				select {
				case <-news.C:
				case <-time.After(time.Minute):
					t.Error("no news of it")
				}
			})
		})
	}
}

// What tracking knows would be out of date when packets come back to the stack.
func TestTrackedConnectionsAreFound(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		if _, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil {
			t.Log("left out: no connection tracking here")
			return
		}
		devices := devices(t)
		shell(t, "ip link set lo up; nft 'add table ip t; add chain ip t o {type filter hook output priority 0;}; add rule ip t o ct state new counter'; bash -c 'echo > /dev/udp/127.0.0.1/9'")
		found, err := bypass.Look(devices, nil)
		if err != nil || len(found) != 1 || !strings.Contains(found[0], "connection tracking") {
			t.Errorf("found %q, %v", found, err)
		}
	})
}
