// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// step is one packet: the program it goes through, what is counted for it and what comes out. Where out is nil the packet
// stays as it is; a drop has no out. A step without a hook only does something between packets.
type step struct {
	hook    string
	in      packet
	verdict string
	out     *packet
	do      func(*rig)
}

// row is a story of packets against services.
type row struct {
	name     string
	services func(world) []lb.Decision
	steps    func(world) []step
	worlds   []world // nil: TCP and UDP in both families
	doors    []door  // nil: every one
}

func became(p packet) *packet { return &p }

// doing is a step that changes the world.
func doing(do func(*rig)) step { return step{do: do} }

// run plays the rows, each in each of its worlds, on one rig.
func runRows(t *testing.T, rows []row) {
	r := newRig(t, bpf.Options{})
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			for _, w := range row.everywhere() {
				t.Run(w.String(), func(t *testing.T) { row.play(r.in(t).at(w), w) })
			}
		})
	}
}

func (row row) everywhere() []world {
	of, at := row.worlds, row.doors
	if of == nil {
		of = worlds(lb.TCP, lb.UDP)
	}
	if at == nil {
		at = doors()
	}
	return through(at, of)
}

func (row row) play(r *rig, w world) {
	r.Helper()
	r.publish(row.services(w)...)
	for i, s := range row.steps(w) {
		if s.do != nil {
			s.do(r)
		}
		if s.hook != "" {
			s.play(r, i+1)
		}
		if r.Failed() {
			return
		}
	}
}

func (s step) play(r *rig, number int) {
	r.Helper()
	in := s.in.bytes()
	got, err := r.run(s.hook, in)
	if err != nil {
		r.Fatalf("step %d: %v", number, err)
	}
	if got.verdict != s.verdict {
		r.Errorf("step %d, %s: verdict %s, want %s\nin:\n%s\nout:\n%s", number, s.hook, got.verdict, s.verdict, show(in), show(got.frame))
		return
	}
	if err := checkOutcome(in, got); err != nil {
		r.Errorf("step %d, %s: %v\nin:\n%s\nout:\n%s", number, s.hook, err, show(in), show(got.frame))
	}
	want := in
	if s.out != nil {
		want = s.out.bytes()
	}
	if class(s.verdict) != bpf.Drop && !bytes.Equal(want, got.frame) {
		r.Errorf("step %d, %s, %s: packet out (-want +got)\n%s", number, s.hook, got.verdict, cmp.Diff(show(want), show(got.frame)))
	}
}

// pick runs a first packet of a connection and says where it went.
func (r *rig) pick(p packet) (outcome, packet) {
	r.Helper()
	got, err := r.run(fromPod, p.bytes())
	if err != nil {
		r.Fatal(err)
	}
	if class(got.verdict) != bpf.Translate {
		r.Fatalf("%s to %s: verdict %s, want a translation", p.src, p.dst, got.verdict)
	}
	if err := checkOutcome(p.bytes(), got); err != nil {
		r.Error(err)
	}
	src, dst := endpoints(r, got.frame)
	return got, p.from(src).to(dst)
}

// try runs a frame that may be anything; false where the kernel refuses it.
func (r *rig) try(hook string, frame []byte) (outcome, bool) {
	r.Helper()
	if r.door == layer3Door { // a spoiled length may reach into what bare fills up with: that is in the packet then
		frame = slices.Concat(frame[:ethernetHeader], bare(frame))
	}
	got, err := r.run(hook, frame)
	if errors.Is(err, errRefused) {
		return got, false
	}
	if err != nil {
		r.Fatal(err)
	}
	if err := checkOutcome(frame, got); err != nil {
		r.Errorf("%s: %v\nin:\n%s\nout:\n%s", hook, err, show(frame), show(got.frame))
	}
	return got, true
}

// expect runs a packet whose output is judged by checkOutcome alone.
func (r *rig) expect(hook string, p packet, verdict string) outcome {
	r.Helper()
	got, _ := r.try(hook, p.bytes())
	if got.verdict != verdict {
		r.Errorf("%s %s to %s: verdict %s, want %s", hook, p.src, p.dst, got.verdict, verdict)
	}
	return got
}
