// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// limited asks for programs of which each processor sends so many ICMP errors a second.
func limited(errors uint32) bpf.Options {
	return bpf.Options{Sizes: small(), Knobs: map[string]any{"icmp_errors_per_second": errors}}
}

// fillICMPBudgets makes every bucket one that was last looked at some seconds ago.
func (r *rig) fillICMPBudgets() {
	r.Helper()
	values := make([]bpf.NearlbIcmpBudget, ebpf.MustPossibleCPU())
	for i := range values {
		values[i].Filled = bpf.Jiffies() - 3*bpf.JiffiesPerSecond() // right to about a second
	}
	check(r, r.objects.IcmpBudgets.Put(uint32(0), values))
}

// RFC 4443 2.4 f: what a service refuses by ICMP is limited, and dropped without an answer beyond that. A reset is no ICMP.
func TestICMPErrorsAreLimited(t *testing.T) {
	const most = 100 // packets of which surely some come within the second that fills a bucket of one
	forEachDoor(t, limited(1), func(t *testing.T, r *rig, w world) {
		r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
		r.fillICMPBudgets()
		in, _ := webPackets(w)
		r.expect(fromPod, in, "reject_no_endpoints")
		held := 0
		for range most {
			got, _ := r.try(fromPod, in.bytes())
			switch {
			case got.verdict == "drop_icmp_limit" && got.action == actShot:
				held++
			case got.verdict != "reject_no_endpoints":
				t.Fatalf("%s", got.verdict)
			}
			if held > 0 {
				break
			}
		}
		if tcp := w.protocol == lb.TCP; tcp != (held == 0) {
			t.Errorf("%d of %d refusals were held back", held, most)
		}
		r.fillICMPBudgets()
		r.expect(fromPod, in, "reject_no_endpoints")
	}, lb.TCP, lb.UDP, lb.SCTP)
}

// What was held back is the Service's loss, not its refusal.
func TestWhatICMPsLimitHoldsBackIsCountedAsDropped(t *testing.T) {
	forEachDoor(t, limited(0), func(t *testing.T, r *rig, w world) {
		r.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
		in, _ := webPackets(w)
		before := r.serviceCounted()
		r.expect(fromPod, in, "drop_icmp_limit")
		after := r.serviceCounted()
		if after.Dropped != before.Dropped+1 || after.Rejected != before.Rejected {
			t.Errorf("%d dropped and %d rejected more, want one dropped", after.Dropped-before.Dropped, after.Rejected-before.Rejected)
		}
	}, lb.UDP)
}

// A router's errors count as well, of TCP, too: what does not fit, and what ends here.
func TestErrorsAboutRoutedPacketsAreLimited(t *testing.T) {
	forEachSite(t, limited(0), func(s site, w world) {
		s.publish(far(w, 2))
		c := s.connect(w, 1)
		check(s, netlink.LinkSetMTU(s.nodes, 1400))
		s.forgetWays()
		before := s.serviceCounted()
		s.expectPlain(c.in.with("A", string(make([]byte, 1400))), "drop_icmp_limit")
		got, _ := s.try(fromNet, ending(c.in.with("A", "text")))
		if got.verdict != "drop_icmp_limit" {
			s.Errorf("a packet whose TTL ends here: %s", got.verdict)
		}
		if after := s.serviceCounted(); after.Dropped != before.Dropped+2 {
			s.Errorf("%d dropped more, want 2", after.Dropped-before.Dropped)
		}
		s.sends(c.in.with("A", "small"), c.out.with("A", "small"), "translate_established")
	}, lb.TCP, lb.UDP)
}
