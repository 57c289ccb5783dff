// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// FuzzDecide looks for an input that panics, depends on order or breaks what maps relies on.
func FuzzDecide(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte("\x01\x01\x01\x02\x01\x02\x01\x02\x00\x50\x75\x30\x03\x01\x02\x07\x01\x01\x01\x01\x02"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w := read(text)
		d := decide.Decide(w.in, w.node)
		checkInvariants(t, d)
		if len(d.Endpoints) != len(w.in.Endpoints) {
			t.Errorf("%d of %d endpoints explained", len(d.Endpoints), len(w.in.Endpoints))
		}
		slices.Reverse(w.in.Endpoints)
		slices.Reverse(w.in.Service.Ports)
		slices.Reverse(w.in.Service.SourceRanges)
		if again := decide.Decide(w.in, w.node); !again.Equal(d) {
			t.Errorf("turned round it decides otherwise: %v", lb.Diff(d, again))
		}
	})
}

// bytes deals out a fuzz input, zeroes when it is at its end.
type bytes []byte

func (b *bytes) next() byte {
	if len(*b) == 0 {
		return 0
	}
	first := (*b)[0]
	*b = (*b)[1:]
	return first
}

func (b *bytes) number() uint16 { return uint16(b.next())<<8 | uint16(b.next()) }

// count is at most n.
func (b *bytes) count(n int) int { return int(b.next()) % (n + 1) }

func (b *bytes) name() string { return []string{"", "a", "b", "n1"}[b.next()&3] }

func (b *bytes) names() []string {
	var out []string
	for range b.count(2) {
		out = append(out, b.name())
	}
	slices.Sort(out)
	return out
}

// address draws from few addresses of every sort, so that they meet, and else from all of IPv4.
func (b *bytes) address() netip.Addr {
	known := append(ips("10.1.0.1", "10.1.0.2", "2001:db8::1", "::ffff:10.1.0.1", "::", "0.0.0.0", "fe80::1%eth0"), netip.Addr{})
	if i := b.next(); int(i) < len(known)*16 {
		return known[int(i)%len(known)]
	}
	return netip.AddrFrom4([4]byte{b.next(), b.next(), b.next(), b.next()})
}

func (b *bytes) addresses() []netip.Addr {
	var out []netip.Addr
	for range b.count(3) {
		out = append(out, b.address())
	}
	return out
}

func (b *bytes) protocol() lb.Protocol {
	return []lb.Protocol{lb.TCP, lb.UDP, lb.SCTP, lb.Protocol(b.next())}[b.next()&3]
}

func (b *bytes) policy() lb.TrafficPolicy {
	return []lb.TrafficPolicy{lb.PolicyCluster, lb.PolicyLocal, "", "Nearest"}[b.next()&3]
}

func read(text []byte) world {
	b := bytes(text)
	svc := lb.Service{
		Type:            []lb.ServiceType{lb.TypeClusterIP, lb.TypeNodePort, lb.TypeLoadBalancer, ""}[b.next()&3],
		ClusterIPs:      b.addresses(),
		ExternalIPs:     b.addresses(),
		LoadBalancerIPs: b.addresses(),
		Internal:        b.policy(),
		External:        b.policy(),
		Affinity:        time.Duration(int8(b.next())) * time.Second,
	}
	for range b.count(3) {
		svc.Ports = append(svc.Ports, lb.ServicePort{Name: b.name(), Protocol: b.protocol(), Port: b.number(), NodePort: b.number()})
	}
	for range b.count(3) {
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(b.address(), int(int8(b.next()))))
	}
	w := world{
		in:   lb.Input{Service: svc},
		node: lb.Node{Name: b.name(), Zone: b.name(), Region: b.name(), Addresses: b.addresses(), NodePortIPs: b.addresses()},
	}
	for len(b) > 0 {
		flags := b.next()
		w.in.Endpoints = append(w.in.Endpoints, lb.Endpoint{
			Port:    lb.PortKey{Name: b.name(), Protocol: b.protocol()},
			Address: netip.AddrPortFrom(b.address(), uint16(b.next()&3)),
			Ready:   flags&1 != 0, Serving: flags&2 != 0, Terminating: flags&4 != 0,
			Node: b.name(), Zone: b.name(), Region: b.name(),
			NodeHints: b.names(), ZoneHints: b.names(), Slice: b.name(),
		})
	}
	return w
}
