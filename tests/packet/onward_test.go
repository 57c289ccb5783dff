// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// withoutSNAT runs a test without what packets through SNAT and into the tunnel need unless they only go on.
func (r *rig) withoutSNAT(test func()) {
	r.Helper()
	defer r.takeAway(bpf.NearlbProgramPROGRAM_FROM_NET_SLOW, r.objects.FromNetSlow)()
	defer r.takeAway(bpf.NearlbProgramPROGRAM_FROM_NET_REPLY, r.objects.FromNetReply)()
	test()
}

// One program and one parse for a packet of a connection that is known, both ways.
func TestKnownConnectionsThroughSNATTakeNoSlowPath(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		s.goesOn(c, "translate_established")
		s.withoutSNAT(func() {
			for range 2 {
				s.goesOn(c, "translate_established")
			}
			s.sends(withoutSum(c.in.with("A", "odd")), withoutSum(c.out.with("A", "odd")), "translate_established")
		})
	}, lb.TCP, lb.UDP)
}

// Whatever is not simple gets what it got before, by the programs that know all: without these it is dropped, and nothing was learnt from it.
func TestOfConnectionsThroughSNATTheSlowPathHasWhatIsNotSimple(t *testing.T) {
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		s.publish(far(w, 2))
		c := s.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		s.goesOn(c, "translate_established")
		all := map[string][]byte{"a TTL at its end": ending(c.in.with("A", "x")), "a TTL at its end, answered": ending(c.out.reply("A", ""))}
		if w.protocol == lb.TCP {
			all["a SYN"], all["a SYN, answered"] = c.in.bytes(), c.out.reply("SA", "").bytes()
			for _, flags := range []string{"FA", "R", "RA"} {
				all[flags], all[flags+", answered"] = c.in.with(flags, "").bytes(), c.out.reply(flags, "").bytes()
			}
		}
		before := s.liveFlows()
		s.withoutSNAT(func() {
			for name, frame := range all {
				got, err := s.run(fromPod, frame)
				check(s, err)
				if got.verdict != "drop_no_program" {
					s.Errorf("%s: %s, want drop_no_program", name, got.verdict)
				}
			}
		})
		if diff := cmp.Diff(before, s.liveFlows()); diff != "" {
			s.Errorf("flows (-before +after)\n%s", diff)
		}
		s.goesOn(c, "translate_established")
	}, lb.TCP, lb.UDP)
}

// The same into the tunnel.
func TestKnownConnectionsThatAreCarriedTakeNoSlowPath(t *testing.T) {
	forEachNodePair(t, func(s nodePair, w world) {
		s.serve(w, nil, 2)
		c := s.carried(w, w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), at(w.pod(2), 8080))
		s.answersBack(w, c, "SA", "")
		s.goesOnThrough(w, c)
		s.withoutSNAT(func() {
			for range 2 {
				s.goesOnThrough(w, c)
			}
		})
	}, lb.TCP, lb.UDP)
}

// The same where the backend's node answers the client itself.
func TestKnownConnectionsThatAreAnsweredDirectlyTakeNoSlowPath(t *testing.T) {
	forEachDirectPair(t, func(s nodePair, w world) {
		c := s.talksDirect(w)
		s.withoutSNAT(func() { s.goesOnDirect(w, c) })
	}, lb.TCP)
}
