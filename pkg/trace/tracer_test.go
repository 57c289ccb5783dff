// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/privileged"
)

// sticky is a Service with session affinity and four backends.
func sticky() lb.Decision {
	input := lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "default", Name: "sticky"}, Type: lb.TypeClusterIP,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Affinity: time.Hour,
		Ports: []lb.ServicePort{{Protocol: lb.TCP, Port: 80}}, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
	}}
	for _, address := range []string{"10.244.2.1:80", "10.244.2.2:80", "10.244.2.3:80", "10.244.2.4:80"} {
		input.Endpoints = append(input.Endpoints, lb.Endpoint{
			Port: lb.PortKey{Protocol: lb.TCP}, Address: netip.MustParseAddrPort(address), Ready: true, Serving: true, Slice: "sticky-1",
		})
	}
	return decide.Decide(input, lb.Node{Name: "n1"})
}

// A client that live session affinity remembers is answered with its backend, whichever that is, and the live entry stays as it is.
func TestLiveSessionAffinityDecides(t *testing.T) {
	pins := privileged.Bpffs(t)
	live, err := bpf.Load(bpf.Options{PinPath: pins, Sizes: bpf.Sizes{FlowSets: 16, Slots: 1 << 16}})
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	decision := sticky()
	publisher, err := maps.Open(&live.NearlbMaps)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := publisher.Apply(decision); err != nil {
		t.Fatal(err)
	}
	tracer, err := Live(pins)
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	request := Request{From: FromPod, Source: netip.MustParseAddrPort("10.244.1.9:0"), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: lb.TCP}
	for id := range uint32(len(decision.Backends)) {
		backend := remembered(t, live, request.Source.Addr(), id+1)
		answer, err := tracer.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Reason != "affinity" || len(answer.Backends) != 1 || answer.Backends[0].Address != backend {
			t.Errorf("affinity with %v: got %+v", backend, answer)
		}
	}
}

// remembered writes a live affinity entry for a backend and gives the backend's address.
func remembered(t *testing.T, live *bpf.Objects, client netip.Addr, id uint32) netip.Addr {
	t.Helper()
	var backend bpf.NearlbBackend
	if err := live.Backends.Lookup(id, &backend); err != nil {
		t.Fatal(err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	key := bpf.NearlbAffinityKey{Client: bpf.NearlbAddress{Bytes: client.As16()}, Service: backend.Service}
	value := bpf.NearlbAffinityValue{Backend: id, Generation: backend.Generation, Touched: uint64(now.Nano())}
	if err := live.Affinity.Put(&key, &value); err != nil {
		t.Fatal(err)
	}
	return netip.AddrFrom16(backend.Address.Bytes).Unmap()
}

// Of many packets some stay on this node, whichever comes first: the way of the others is named.
func TestTheWayToAnotherNodeIsNamedWhereverTheFirstPacketGoes(t *testing.T) {
	privileged.Require(t)
	input := lb.Input{Service: lb.Service{
		Name: lb.ServiceName{Namespace: "default", Name: "web"}, Type: lb.TypeClusterIP, OffNode: lb.OffNodeCarry,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Internal: lb.PolicyCluster, External: lb.PolicyCluster,
		Ports: []lb.ServicePort{{Protocol: lb.TCP, Port: 80}},
	}}
	node := lb.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
	for name, address := range map[string]string{"n1": "10.244.1.1:80", "n2": "10.244.2.1:80"} {
		input.Endpoints = append(input.Endpoints, lb.Endpoint{
			Port: lb.PortKey{Protocol: lb.TCP}, Address: netip.MustParseAddrPort(address), Ready: true, Serving: true, Slice: "web-1", Node: name,
		})
	}
	config := maps.Config{SNATPorts: maps.DefaultSNATPorts()}
	tracer, problems, err := Offline([]lb.Decision{decide.Decide(input, node)}, config.WithNode(node), FromNetwork)
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	defer tracer.Close()
	here := 0
	for i := range byte(16) {
		request := Request{From: FromNetwork, Source: netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, i}), 0), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: lb.TCP}
		first, err := tracer.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if first.Way == nil {
			here++
		}
		request.Count = 20
		answer, err := tracer.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Way == nil || answer.Way.Name != lb.OffNodeSNAT {
			t.Errorf("of %+v the way is %+v", answer.Backends, answer.Way)
		}
	}
	if here == 0 || here == 16 {
		t.Errorf("of 16 first packets %d stay here: the test does not test what it should", here)
	}
}

// The verifier takes most of a trace's time: it is not to walk through programs that no first packet meets.
func TestATracerLoadsOnlyProgramsThatFirstPacketsMeet(t *testing.T) {
	privileged.Require(t)
	tracer, err := Private(bpf.Sizes{Frontends: 64, Records: 64, Slots: 1 << 16, Backends: 64, Services: 64, Names: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	loaded := tracer.objects.NearlbPrograms.ByName()
	for _, name := range []string{bpf.NearlbProgFromPod, bpf.NearlbProgFromPodSlow, bpf.NearlbProgFromNet, bpf.NearlbProgReject, bpf.NearlbProgSockExplain} {
		if loaded[name] == nil {
			t.Errorf("%s is not loaded", name)
		}
	}
	for name := range loaded {
		if strings.HasPrefix(name, "to_") || strings.HasPrefix(name, "sock_") && name != bpf.NearlbProgSockExplain {
			t.Errorf("%s is loaded: no first packet meets it", name)
		}
	}
}

func TestATracerOfOneDoorLoadsNoProgramsOfOthers(t *testing.T) {
	privileged.Require(t)
	for door, own := range behind {
		tracer, err := Private(bpf.Sizes{Frontends: 64, Records: 64, Slots: 1 << 16, Backends: 64, Services: 64, Names: 64}, door)
		if err != nil {
			t.Fatal(err)
		}
		loaded := tracer.objects.NearlbPrograms.ByName()
		for name := range loaded {
			if belongs := slices.Contains(own, name); !belongs && (strings.HasPrefix(name, "from_") || strings.HasPrefix(name, "sock_")) {
				t.Errorf("door %s: %s is loaded, which no packet through it meets", door, name)
			}
		}
		for _, name := range own {
			if loaded[name] == nil {
				t.Errorf("door %s: %s is not loaded", door, name)
			}
		}
		for _, other := range []Door{FromPod, FromHost, FromNetwork} {
			_, err := tracer.Do(Request{From: other, Source: netip.MustParseAddrPort("10.244.1.9:0"), To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: lb.TCP})
			if (err == nil) != (other == door) {
				t.Errorf("door %s: a packet through %s: %v", door, other, err)
			}
		}
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	}
}
