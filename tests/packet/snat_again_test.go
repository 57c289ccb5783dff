// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// A device that is none of the network's leads to pods of this node, whatever EndpointSlices say: replies come back through the
// device of the pod, where nobody looks for them.
func TestABackendBehindADeviceOfPodsSeesTheClientsAddress(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		pods := addDevice(s, "pods", w.addr("10.244.0.", "fd00:244::", 1).String()+map[bool]string{false: "/24", true: "/64"}[w.v6])
		defer func() { check(s, netlink.LinkDel(pods)) }()
		s.route(w, &netlink.Route{LinkIndex: pods.Attrs().Index})
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		got, err := s.run(fromPod, in.bytes())
		check(s, err)
		if want := in.to(at(w.pod(2), 8080)); got.verdict != "translate_balance" || got.action != actUnspec || !bytes.Equal(got.frame, want.bytes()) {
			s.Errorf("verdict %s, action %d, packet out (-want +got)\n%s", got.verdict, got.action, cmp.Diff(show(want.bytes()), show(got.frame)))
		}
		s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
	}, lb.TCP, lb.UDP)
}

// A connection that is made again keeps its port, even where another one, which had the first choice, is gone by now.
func TestAForgottenConnectionFindsThePortThatItsServerKnows(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, withSets(4096), func(s site, w world) {
		s.seed(1)
		s.publish(far(w, 2))
		var talks []talk
		for n := range 20 {
			talks = append(talks, s.remote(w.packet(at(w.outside(1), uint16(41000+n)), at(w.outside(10), 80)), "translate_balance"))
		}
		for i, c := range talks {
			s.goesOn(c, "translate_established")
			s.editFlows(func(f *bpf.NearlbFlow) {
				own := f.KeyPort == swap(c.in.src.Port()) || f.TwinPort == swap(c.in.src.Port())
				if own && (i%2 == 0 || f.Flags&alias == 0) { // of even ones nothing is left, of odd ones the second entry
					f.Word &^= 3
				}
			})
		}
		for i, c := range talks {
			if i%2 == 1 {
				s.goesOn(c, "translate_recover")
			}
		}
	}, lb.TCP)
}

// Ports of an earlier range serve nobody.
func TestAFlowThatIsMadeAgainKeepsToTheRangeInForce(t *testing.T) {
	const alias = uint8(bpf.NearlbFlowFlagsFLOW_ALIAS)
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		s.editFlows(func(f *bpf.NearlbFlow) {
			if f.Flags&alias != 0 {
				f.Word &^= 3
			}
		})
		now := maps.PortRange{First: 62000, Last: 62039}
		s.configure(now)
		again := s.remote(c.in, "translate_balance")
		if !now.Contains(again.out.src.Port()) {
			s.Errorf("left as %s, want a port of %s", again.out.src, now)
		}
		s.configure(snatPorts())
	}, lb.UDP)
}
