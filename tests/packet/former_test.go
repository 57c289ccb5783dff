// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// As tables are exchanged, connections that began after the last copy are in the former tables alone (ARCHITECTURE.md, upgrade).

// isLeftBy has the programs of now ask those of r.
func (r *rig) isLeftBy(now *rig) {
	r.Helper()
	programs := now.objects.Programs
	for _, at := range []bpf.NearlbProgram{bpf.NearlbProgramPROGRAM_FORMER, bpf.NearlbProgramPROGRAM_FORMER_REPLY} {
		check(r, programs.Put(uint32(at), r.objects.FromNet))
	}
	for _, at := range []bpf.NearlbProgram{bpf.NearlbProgramPROGRAM_FORMER_POD, bpf.NearlbProgramPROGRAM_FORMER_POD_REPLY} {
		check(r, programs.Put(uint32(at), r.objects.FromPod))
	}
	r.Cleanup(now.asksNobody)
}

func (r *rig) asksNobody() {
	r.Helper()
	for _, at := range []bpf.NearlbProgram{bpf.NearlbProgramPROGRAM_FORMER, bpf.NearlbProgramPROGRAM_FORMER_POD,
		bpf.NearlbProgramPROGRAM_FORMER_REPLY, bpf.NearlbProgramPROGRAM_FORMER_POD_REPLY} {
		if err := r.objects.Programs.Delete(uint32(at)); err != nil && r.has(at) {
			r.Errorf("delete program %d: %v", at, err)
		}
	}
}

func (r *rig) has(at bpf.NearlbProgram) bool {
	var p *ebpf.Program
	err := r.objects.Programs.Lookup(uint32(at), &p)
	if err == nil {
		p.Close()
	}
	return err == nil
}

// answeredBy sends a packet through the programs of r, to have it translated by the flows of former.
func (r *rig) answeredBy(former *rig, in packet, verdict string, frame []byte) {
	r.Helper()
	of := counter{former.hook(fromPod), verdict}
	here, there := r.total(), former.counters()[of].Packets
	_, got, err := r.execute(fromPod, in.bytes())
	check(r, err)
	if n := former.counters()[of].Packets - there; n != 1 || r.total() != here {
		r.Errorf("%s to %s: %d packets counted as %s by the former programs, %d by these", in.src, in.dst, n, verdict, r.total()-here)
	}
	if !bytes.Equal(got, frame) {
		r.Errorf("%s to %s: packet out (-want +got)\n%s", in.src, in.dst, cmp.Diff(show(frame), show(got)))
	}
	former.counted = former.counters()
}

// forEachLeftSite runs a test for both families of TCP beside the former tables of the same site, f: both serve pods of another node, and choose
// different ports.
func forEachLeftSite(t *testing.T, test func(s, f site, w world), pods ...int) {
	t.Helper()
	former := newRig(t, bpf.Options{})
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		f := s
		f.rig = former.in(t).at(w)
		f.isLeftBy(s.rig)
		s.seed(1)
		f.seed(2)
		for _, each := range []site{f, s} {
			each.configure(snatPorts())
			each.publish(far(w, pods...))
		}
		test(s, f, w)
	}, lb.TCP)
}

// A client off the node goes on from the port that its server knows, which these tables would choose otherwise. It was reset by its
// server. New connections are made here.
func TestPacketsOfConnectionsInFormerTablesLeaveByTheirPort(t *testing.T) {
	forEachLeftSite(t, func(s, f site, w world) {
		c := f.remote(w.packet(at(w.outside(1), 41000), at(w.outside(10), 80)), "translate_balance")
		answer := c.out.reply("SA", "")
		for range 2 {
			s.answeredBy(f.rig, answer, "translate_reply", routed(answer.from(c.in.dst).to(c.in.src)))
			s.answeredBy(f.rig, c.in.with("A", "x"), "translate_established", routed(c.out.with("A", "x")))
		}
		if n := len(s.liveFlows()); n != 0 {
			s.Errorf("%d flows were made here", n)
		}
		next := s.remote(w.packet(at(w.outside(2), 41000), at(w.outside(10), 80)), "translate_balance")
		s.goesOn(next, "translate_established")
		s.asksNobody()
		again := s.remote(c.in.with("A", "x"), "translate_recover")
		if again.out.src == c.out.src {
			s.Errorf("these tables choose %s, too: the test shows nothing", c.out.src)
		}
	}, 2)
}

// A pod's connection whose own port another one has towards the server goes on from the port that it was given.
func TestPacketsOfAPodsConnectionsInFormerTablesLeaveByTheirPort(t *testing.T) {
	former := newRig(t, bpf.Options{})
	forEachWorld(t, bpf.Options{}, func(t *testing.T, r *rig, w world) {
		f := former.in(t).at(w)
		f.isLeftBy(r)
		for _, each := range []*rig{f, r} {
			each.publish(twins(w)...)
		}
		in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80))
		first, second := f.start(in), f.start(in.to(at(w.vip(11), 80)))
		f.counted = f.counters()
		for _, c := range []talk{first, second} {
			r.answeredBy(f, c.in.with("A", "x"), "translate_established", c.out.with("A", "x").bytes())
		}
		if n := len(r.liveFlows()); n != 0 {
			t.Errorf("%d flows were made here", n)
		}
		r.asksNobody()
		r.expect(fromPod, second.in.with("A", "x"), "translate_recover")
		if second.out.src == second.in.src {
			t.Errorf("left from its own port: the test shows nothing")
		}
	}, lb.TCP)
}

// A connection of the host's own sockets went to another server, a pod of this node, after the last copy: the pod's answers are found by the former
// tables. They came to the host as they were, which reset the connection.
func TestAnswersOfPodsToConnectionsOfTheHostInFormerTablesReachIt(t *testing.T) {
	forEachLeftSite(t, func(s, f site, w world) {
		c := f.steered(w)
		s.hostThere(true)
		s.route(w, &netlink.Route{LinkIndex: s.bridge().Attrs().Index})
		pods := world{v6: w.v6, protocol: w.protocol}
		here, there := s.rig.at(pods), f.rig.at(pods)
		there.counted = there.counters()
		for _, change := range changes(w) {
			for _, answer := range []packet{c.out.reply("SA", ""), c.out.reply("PA", "hello yourself")} {
				here.answeredBy(there, change(answer), "translate_reply", change(answer.from(c.in.dst).to(c.in.src)).bytes())
			}
		}
		s.asksNobody()
		passes := c.out.reply("PA", "hello yourself")
		got, err := here.run(fromPod, passes.bytes())
		check(s, err)
		if got.verdict != "pass_not_service" || !bytes.Equal(got.frame, passes.bytes()) {
			s.Errorf("without them: %s, packet out\n%s", got.verdict, show(got.frame))
		}
		s.route(w, &netlink.Route{LinkIndex: s.nodes.Attrs().Index, Gw: w.addr("172.31.0.", "fd00:31::", 2).AsSlice()})
	}, 2, 3)
}

// bridge is a device that leads to pods of this node, whose own are behind it.
func (s site) bridge() netlink.Link {
	s.Helper()
	const name = "bridge"
	if link, err := netlink.LinkByName(name); err == nil {
		return link
	}
	return addDevice(s, name)
}
