// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/maps"
)

func addresses(texts ...string) (all []netip.Addr) {
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func TestAnAddressThatComesAndGoesChangesServicesWithNodePortsAlone(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.set(1, 1)
		in := input(2, 1)
		in.Service.Ports[0].NodePort = 30080
		b.source.put(in)
		b.Synced()
		b.settle()
		b.want("apply s1", "apply s2", "configure", "audit")
		if !strings.Contains(dump(t, b.tables), "NodePort 192.0.2.1:30080") {
			t.Errorf("the Node's address does not answer:\n%s", dump(t, b.tables))
		}
		b.networkChanged(attach.Network{Local: addresses("192.0.2.1", "198.51.100.7", "2001:db8::7")})
		b.after(testDebounce)
		b.want("configure", "apply s2")
		if !strings.Contains(dump(t, b.tables), "NodePort 198.51.100.7:30080") {
			t.Errorf("the host's new address does not answer:\n%s", dump(t, b.tables))
		}
		b.networkChanged(attach.Network{Local: addresses("192.0.2.1", "2001:db8::7")})
		b.after(testDebounce)
		b.want("configure", "apply s2")
		if strings.Contains(dump(t, b.tables), "198.51.100.7") {
			t.Errorf("an address that is gone answers:\n%s", dump(t, b.tables))
		}
	})
}

func TestAddressesOfServicesAndThoseNotAskedForAnswerNoNodePorts(t *testing.T) {
	inBubble(t, func(b *bench) {
		b.source.cidrs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
		b.networkChanged(attach.Network{Local: addresses("10.96.0.10", "192.0.2.1", "198.51.100.7")})
		if got := fmt.Sprint(b.node().NodePortIPs); got != "[192.0.2.1 198.51.100.7]" {
			t.Errorf("NodePorts answer on %s", got)
		}
		b.Synced()
		b.settle()
		if c, err := b.tables.Config(); err != nil || fmt.Sprint(c.Sources) != "[192.0.2.1 198.51.100.7]" {
			t.Errorf("sources of SNAT are %v, %v", c.Sources, err)
		}
		b.nodeConfig.NodePortAddresses = []string{"198.51.100.0/24"}
		b.NodeChanged()
		if got := fmt.Sprint(b.node().NodePortIPs); got != "[198.51.100.7]" {
			t.Errorf("with a CIDR, NodePorts answer on %s", got)
		}
		b.nodeConfig.NodePortAddresses = []string{"primary"}
		b.NodeChanged()
		if got := fmt.Sprint(b.node().NodePortIPs); got != "[192.0.2.1]" {
			t.Errorf("with primary, NodePorts answer on %s", got)
		}
	})
}

func TestEveryDeviceHasASourceOrTheNodes(t *testing.T) {
	n := attach.Network{
		Devices: []attach.NetworkDevice{{Name: "eth0", Ifindex: 2, Addresses: addresses("192.0.2.1", "192.0.2.9", "2001:db8::1"), Lasting: addresses("192.0.2.9")},
			{Name: "vxlan0", Ifindex: 5, Addresses: addresses("10.244.1.0")}},
		Local: addresses("10.244.1.0", "192.0.2.1", "192.0.2.9", "198.51.100.50", "2001:db8::1"),
	}
	node4, node6 := n.Local[1], n.Local[4]
	devices, sources := sourcesOf(n, node4, node6)
	want := map[uint32]maps.DeviceSources{2: {Source4: node4, Source6: node6, Others: addresses("192.0.2.9")}, 5: {Source4: n.Local[0], Source6: node6}}
	if fmt.Sprint(devices) != fmt.Sprint(want) {
		t.Errorf("devices have %v, want %v", devices, want)
	}
	if got := fmt.Sprint(sources); got != "[192.0.2.1 2001:db8::1 10.244.1.0 192.0.2.9 198.51.100.50]" {
		t.Errorf("sources are %s", got)
	}
	for i := range 100 {
		n.Local = append(n.Local, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	if _, sources := sourcesOf(n, node4, node6); len(sources) != maps.SourceLimit || sources[0] != node4 {
		t.Errorf("%d sources, the first %v; want as many as fit, the node's first", len(sources), sources[0])
	}
}

func TestQuietPortsAreTheLongestRowThatNobodyGetsByItself(t *testing.T) {
	for _, row := range []struct{ own, first, want maps.PortRange }{
		{maps.PortRange{First: 32768, Last: 60999}, maps.DefaultSNATPorts(), maps.PortRange{First: 1024, Last: 32767}},
		{maps.PortRange{First: 1024, Last: 40000}, maps.PortRange{First: 61000, Last: 62000}, maps.PortRange{First: 40001, Last: 60999}},
		{maps.PortRange{First: 20000, Last: 60999}, maps.PortRange{First: 10000, Last: 10100}, maps.PortRange{First: 10101, Last: 19999}},
		{maps.PortRange{First: 1, Last: 65535}, maps.DefaultSNATPorts(), maps.PortRange{}},
	} {
		if got := quietPorts(row.own, row.first); got != row.want {
			t.Errorf("own %s, --snat-ports %s: quiet are %s, want %s", row.own, row.first, got, row.want)
		}
	}
}

func TestSourcePortsThatTheHostUsesItselfAreToldUnlessTheyAreReserved(t *testing.T) {
	ports, own := maps.DefaultSNATPorts(), maps.PortRange{First: 32768, Last: 60999}
	for name, row := range map[string]struct {
		own      maps.PortRange
		reserved []maps.PortRange
		told     bool
	}{
		"Linux's own range":        {own, nil, false},
		"one port of them":         {maps.PortRange{First: 32768, Last: 61000}, nil, true},
		"all of them":              {maps.PortRange{First: 1024, Last: 65535}, nil, true},
		"all of them, reserved":    {maps.PortRange{First: 1024, Last: 65535}, []maps.PortRange{{First: 60000, Last: 62000}, {First: 62001, Last: 65535}}, false},
		"all of them but reserved": {maps.PortRange{First: 1024, Last: 65535}, []maps.PortRange{{First: 61001, Last: 65535}}, true},
	} {
		if err := overlap(ports, row.own, row.reserved); (err != nil) != row.told {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRangesOfPortsAreReadOrRefused(t *testing.T) {
	if got, err := ParseSNATPorts("61000-65535"); err != nil || got != maps.DefaultSNATPorts() {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "61000", "61000-", "-61000", "65535-61000", "0-100", "61000-65536", "a-b", "61000-62000-63000"} {
		if got, err := ParseSNATPorts(bad); err == nil || !strings.Contains(err.Error(), "want FIRST-LAST, as 61000-65535") {
			t.Errorf("%q is read as %v (%v)", bad, got, err)
		}
	}
}

const nodePortService = `
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.2.1], nodeName: n2}
`

// address gives a device an address, as somebody does while the agent runs.
func (m *machine) address(device, prefix string) {
	m.Helper()
	l, err := netlink.LinkByName(device)
	m.must(err)
	a, err := netlink.ParseAddr(prefix)
	m.must(err)
	a.Flags = unix.IFA_F_NODAD
	m.must(netlink.AddrAdd(l, a))
}

// Forwarding and strict rp_filter are as the machine had them, before and after.
func TestTheNodesNetworkIsFollowedAndItsSettingsAreLeftAlone(t *testing.T) {
	inMachine(t, func(m *machine) {
		m.pod("eth0")
		m.address("eth0", "192.0.2.1/24")
		m.manifest("web.yaml", nodePortService)
		kept := map[string]string{"/proc/sys/net/ipv4/ip_forward": "0", "/proc/sys/net/ipv6/conf/all/forwarding": "0",
			"/proc/sys/net/ipv4/conf/all/rp_filter": "1", "/proc/sys/net/ipv4/conf/eth0/rp_filter": "1"}
		for path, value := range kept {
			m.must(os.WriteFile(path, []byte(value), 0o644))
		}
		p := m.agent(nil)
		p.serving(2)
		for _, row := range m.devices() {
			if row.Ifindex != 0 && (row.Device != "eth0" || row.Kind != "network") {
				m.Errorf("%+v is attached", row)
			}
		}
		m.address("eth0", "198.51.100.7/24")
		p.await("another address", func(s Status) bool {
			return fmt.Sprint(s.Node.NodePorts) == "[192.0.2.1 198.51.100.7 2001:db8::1]" && s.Dirty == 0 &&
				strings.Contains(m.dump(), "NodePort 198.51.100.7:30080")
		})
		status := p.await("forwarding", func(s Status) bool { return strings.Contains(fmt.Sprint(s.Trouble), "IPv4 forwarding: off on eth0") })
		if strings.Contains(fmt.Sprint(status.Trouble), "rp_filter") {
			m.Errorf("strict rp_filter is told: %q", status.Trouble)
		}
		m.must(p.end(syscall.SIGTERM))
		dump := m.dump()
		for _, line := range []string{"snat-ports 61000-65535", "node 192.0.2.1", "node 2001:db8::1", "node-port 192.0.2.1", "node-port 2001:db8::1"} {
			if !strings.Contains(dump, line+"\n") {
				m.Errorf("%q is not in the tables:\n%s", line, dump)
			}
		}
		for path, value := range kept {
			if text, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(text)) != value {
				m.Errorf("%s is %q (%v), was %s", path, text, err, value)
			}
		}
	})
}
