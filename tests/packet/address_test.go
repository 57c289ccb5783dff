// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// A service address takes no packet of a protocol that no service has, as with kube-proxy in nftables mode; addresses that
// others may serve as well do.
func TestOtherProtocolsToAServiceAddress(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		other := world{v6: w.v6, protocol: lb.Protocol(47), door: w.door}
		ofKind := func(kind lb.Kind, n int) lb.Decision {
			return w.decide(service{name: "web" + string(kind), kind: kind, address: at(w.outside(n), 80), tiers: tiersOf(w.tier(8080, 2))})
		}
		r.publish(append(web(w), ofKind(lb.KindExternalIP, 10), ofKind(lb.KindLoadBalancer, 11))...)
		in := other.packet(at(w.pod(1), 0), at(w.vip(10), 0))
		for _, size := range []int{8, 9, 700} {
			in.payload = bytes.Repeat([]byte{0x5a}, size)
			checkUnreachable(t, in, r.expect(fromPod, in, "reject_unknown_port"))
		}
		r.expect(fromPod, in.to(at(w.vip(99), 0)), "drop_unallocated")
		for _, n := range []int{1, 10, 11} {
			r.expect(fromPod, in.to(at(w.outside(n), 0)), "pass_protocol")
		}
	}, lb.TCP)
}

// Later fragments of an echo request follow the first: none of them leaves for a service address.
func TestFragmentsOfAnEchoRequestToAServiceAddress(t *testing.T) {
	forEachDoor(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		r.publish(web(w)...)
		ping := packet{src: at(w.pod(1), 0), dst: at(w.vip(10), 0), protocol: w.icmp(), icmp: w.echo(true)}
		ping.icmp.body = make([]byte, 3000)
		for _, to := range []struct {
			n       int
			verdict string
		}{{10, "drop_fragment"}, {99, "drop_fragment"}} {
			p := ping.to(at(w.vip(to.n), 0))
			r.expect(fromPod, p.cut(7, 1480, 2960), to.verdict)
			r.expect(fromPod, p.cut(7, 2960, 0), to.verdict)
		}
		r.expect(fromPod, ping.to(at(w.outside(1), 0)).cut(7, 1480, 2960), "pass_fragment")
	}, lb.TCP)
}
