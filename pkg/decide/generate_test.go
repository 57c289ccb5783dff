// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// world is one input of Decide.
type world struct {
	in   lb.Input
	node lb.Node
}

var (
	nodeNames   = []string{"", "n1", "n2", "n3"}
	zoneNames   = []string{"", "a", "b", "c"}
	labelKeys   = []string{"kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region", "rack", "row"}
	regionNames = []string{"", "r1", "r2"}
	portNames   = []string{"", "http", "dns"}
	protocols   = []lb.Protocol{lb.TCP, lb.UDP}
)

// anyWorld draws small worlds in which everything meets everything: few names, few addresses, many copies.
func anyWorld(t *rapid.T) world {
	node := lb.Node{
		Name:        rapid.SampledFrom([]string{"", "n1", "n1", "n1", "n1"}).Draw(t, "node"),
		Zone:        rapid.SampledFrom([]string{"", "a", "a", "a"}).Draw(t, "zone"),
		Region:      "r1",
		Labels:      anyLabels(t),
		Addresses:   subset(t, "addresses", ips("192.0.2.1", "2001:db8:2::1", "192.0.3.1")),
		NodePortIPs: subset(t, "node port addresses", ips("192.0.2.1", "192.0.3.1", "2001:db8:2::1")),
	}
	style := rapid.SampledFrom([]string{"mixed", "ready", "hinted", "leaving"}).Draw(t, "style")
	drawn := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) lb.Endpoint { return anyEndpoint(t, style) }), 0, 9).Draw(t, "endpoints")
	w := world{in: lb.Input{Service: anyService(t), Endpoints: drawn}, node: node}
	if w.in.Service.Overflow.Given {
		for _, name := range subset(t, "zones with processors", zoneNames) {
			w.in.Zones = append(w.in.Zones, lb.Zone{Name: name, Processors: rapid.Uint64Range(0, 5000).Draw(t, "processors")})
		}
	}
	return w
}

func anyService(t *rapid.T) lb.Service {
	svc := lb.Service{
		Name:            lb.ServiceName{Namespace: "default", Name: "web"},
		Type:            rapid.SampledFrom([]lb.ServiceType{lb.TypeClusterIP, lb.TypeNodePort, lb.TypeLoadBalancer}).Draw(t, "type"),
		ClusterIPs:      rapid.SampledFrom([][]netip.Addr{ips("10.96.0.10"), ips("2001:db8:96::10"), ips("10.96.0.10", "2001:db8:96::10"), nil}).Draw(t, "cluster IPs"),
		ExternalIPs:     subset(t, "external IPs", ips("198.51.100.7", "2001:db8:7::7")),
		LoadBalancerIPs: subset(t, "load balancer IPs", ips("203.0.113.8", "203.0.113.9", "2001:db8:9::9")),
		SourceRanges:    subset(t, "source ranges", prefixes("10.0.0.0/8", "192.0.2.0/24", "2001:db8:1::/48", "2001:db8:2::/48", "0.0.0.0/0", "::/0")),
		Internal:        rapid.SampledFrom([]lb.TrafficPolicy{lb.PolicyCluster, lb.PolicyLocal}).Draw(t, "internal"),
		External:        rapid.SampledFrom([]lb.TrafficPolicy{lb.PolicyCluster, lb.PolicyLocal}).Draw(t, "external"),
	}
	askForNearness(t, &svc)
	for i, name := range subset(t, "ports", portNames) {
		for _, protocol := range subset(t, "protocols", protocols) {
			p := lb.ServicePort{Name: name, Protocol: protocol, Port: uint16(80 + i)}
			if rapid.Bool().Draw(t, "has node port") {
				p.NodePort = uint16(30080 + i)
			}
			svc.Ports = append(svc.Ports, p)
		}
	}
	return svc
}

// askForNearness draws what annotations and the slice controller are asked for, mostly nothing.
func askForNearness(t *rapid.T, svc *lb.Service) {
	if rapid.IntRange(0, 2).Draw(t, "has keys") == 0 {
		svc.TopologyKeys = rapid.Permutation(subset(t, "keys", labelKeys)).Draw(t, "keys' order")
		if rapid.Bool().Draw(t, "any") {
			svc.TopologyKeys = append(svc.TopologyKeys, lb.AnyTopology)
		}
	}
	svc.Distribution = rapid.SampledFrom([]lb.Distribution{"", "", "", lb.PreferSameNode, lb.PreferSameZone}).Draw(t, "distribution")
	if rapid.IntRange(0, 3).Draw(t, "has overflow") == 0 {
		svc.Overflow = lb.Overflow{Percent: rapid.Uint16Range(0, 100).Draw(t, "overflow"), Given: true}
	}
	svc.LocalFallback = rapid.Bool().Draw(t, "fallback")
	svc.WantsHints = rapid.Bool().Draw(t, "wants hints")
}

func anyLabels(t *rapid.T) lb.Labels {
	all := map[string]string{}
	for _, key := range subset(t, "labels", labelKeys) {
		all[key] = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, key)
	}
	return lb.NewLabels(all)
}

func anyEndpoint(t *rapid.T, style string) lb.Endpoint {
	e := lb.Endpoint{
		Port:        lb.PortKey{Name: rapid.SampledFrom(portNames).Draw(t, "port"), Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol")},
		Ready:       rapid.Bool().Draw(t, "ready"),
		Serving:     rapid.Bool().Draw(t, "serving"),
		Terminating: rapid.Bool().Draw(t, "terminating"),
		Node:        rapid.SampledFrom(nodeNames).Draw(t, "node"),
		Zone:        rapid.SampledFrom(zoneNames).Draw(t, "zone"),
		Region:      rapid.SampledFrom(regionNames).Draw(t, "region"),
		NodeHints:   subset(t, "node hints", nodeNames),
		ZoneHints:   subset(t, "zone hints", zoneNames),
		Labels:      anyLabels(t),
		Slice:       fmt.Sprintf("web-%d", rapid.IntRange(0, 3).Draw(t, "slice")),
		Warm:        rapid.SampledFrom([]uint8{0, 0, 0, 0, 1, 5, lb.WarmSteps - 1}).Draw(t, "warm"),
		Weight:      lb.Weight{Value: rapid.Uint16Range(1, 3).Draw(t, "weight"), Given: rapid.Bool().Draw(t, "weighted")},
	}
	address := rapid.SampledFrom(ips("10.1.0.1", "10.1.0.2", "10.1.0.3", "2001:db8::1", "2001:db8::2")).Draw(t, "address")
	e.Address = netip.AddrPortFrom(address, rapid.SampledFrom([]uint16{8080, 9080}).Draw(t, "number"))
	switch style {
	case "ready":
		e.Ready = true
	case "leaving":
		e.Ready, e.Terminating = false, true
	case "hinted":
		e.Ready = e.Ready || !e.Terminating
		if len(e.NodeHints) == 0 {
			e.NodeHints = []string{"n1"}
		}
		if len(e.ZoneHints) == 0 {
			e.ZoneHints = []string{"b"}
		}
	}
	return e
}

// subset draws some of the values, in their order.
func subset[T any](t *rapid.T, what string, values []T) []T {
	var out []T
	for _, v := range values {
		if rapid.Bool().Draw(t, what) {
			out = append(out, v)
		}
	}
	return out
}

// brokenWorld draws what no API server lets through: any protocol and port, odd addresses, frontends that clash.
func brokenWorld(t *rapid.T) world {
	w := anyWorld(t)
	odd := append(ips("0.0.0.0", "::", "::ffff:10.1.0.1", "fe80::1%eth0", "10.96.0.10", "192.0.2.1", "203.0.113.9"), netip.Addr{})
	w.in.Service.ClusterIPs = append(w.in.Service.ClusterIPs, subset(t, "odd cluster IPs", odd)...)
	w.in.Service.ExternalIPs = append(w.in.Service.ExternalIPs, subset(t, "odd external IPs", odd)...)
	w.in.Service.LoadBalancerIPs = append(w.in.Service.LoadBalancerIPs, subset(t, "odd load balancer IPs", odd)...)
	w.node.Addresses = append(w.node.Addresses, subset(t, "odd addresses", odd)...)
	w.node.NodePortIPs = append(w.node.NodePortIPs, subset(t, "odd node port addresses", odd)...)
	w.in.Service.Type = lb.ServiceType(rapid.SampledFrom([]string{"", "ExternalName", "LoadBalancer"}).Draw(t, "odd type"))
	w.in.Service.Internal = lb.TrafficPolicy(rapid.SampledFrom([]string{"", "local", "Local"}).Draw(t, "odd policy"))
	w.in.Service.Affinity = time.Duration(rapid.IntRange(-2, 2).Draw(t, "odd affinity")) * time.Second
	for range rapid.IntRange(0, 3).Draw(t, "odd ranges") {
		address := rapid.SampledFrom(odd).Draw(t, "odd range")
		w.in.Service.SourceRanges = append(w.in.Service.SourceRanges, netip.PrefixFrom(address, rapid.IntRange(-1, 129).Draw(t, "bits")))
	}
	for range rapid.IntRange(0, 3).Draw(t, "odd ports") {
		w.in.Service.Ports = append(w.in.Service.Ports, lb.ServicePort{
			Name: rapid.SampledFrom(portNames).Draw(t, "odd port"), Protocol: lb.Protocol(rapid.Byte().Draw(t, "odd protocol")),
			Port: rapid.Uint16().Draw(t, "odd number"), NodePort: rapid.Uint16().Draw(t, "odd node port"),
		})
	}
	for range rapid.IntRange(0, 3).Draw(t, "odd endpoints") {
		e := anyEndpoint(t, "mixed")
		e.Address = netip.AddrPortFrom(rapid.SampledFrom(odd).Draw(t, "odd address"), rapid.Uint16().Draw(t, "odd number"))
		e.Node = rapid.String().Draw(t, "odd node")
		w.in.Endpoints = append(w.in.Endpoints, e)
	}
	return w
}

// shuffled is the same world told in another order.
func (w world) shuffled(t *rapid.T) world {
	w.in.Endpoints = rapid.Permutation(w.in.Endpoints).Draw(t, "endpoints' order")
	w.in.Service.Ports = rapid.Permutation(w.in.Service.Ports).Draw(t, "ports' order")
	w.in.Service.ClusterIPs = rapid.Permutation(w.in.Service.ClusterIPs).Draw(t, "cluster IPs' order")
	w.in.Service.ExternalIPs = rapid.Permutation(w.in.Service.ExternalIPs).Draw(t, "external IPs' order")
	w.in.Service.LoadBalancerIPs = rapid.Permutation(w.in.Service.LoadBalancerIPs).Draw(t, "load balancer IPs' order")
	w.in.Service.SourceRanges = rapid.Permutation(w.in.Service.SourceRanges).Draw(t, "ranges' order")
	w.node.NodePortIPs = rapid.Permutation(w.node.NodePortIPs).Draw(t, "node port addresses' order")
	return w
}

// cut puts the endpoints into other slices, some into two.
func (w world) cut(t *rapid.T) world {
	w.in.Endpoints = slices.Clone(w.in.Endpoints)
	for i := range w.in.Endpoints {
		w.in.Endpoints[i].Slice = fmt.Sprintf("new-%d", rapid.IntRange(0, 4).Draw(t, "slice"))
		if rapid.Bool().Draw(t, "twice") {
			again := w.in.Endpoints[i]
			again.Slice = "new-again"
			w.in.Endpoints = append(w.in.Endpoints, again)
		}
	}
	return w
}

func TestMain(m *testing.M) { runWithManyWorlds(m) }
