// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"net/netip"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Names of the floors among the courses.
const (
	floorEmpty   = "floor/empty"
	floorHash    = "floor/hash_lookup"
	floorRewrite = "floor/rewrite"
	floorXDP     = "floor/xdp"
)

// courses lists what the options ask for, floors first.
func (b *bench) courses(p part) ([]*course, error) {
	all, err := b.floorCourses()
	if err != nil {
		return nil, err
	}
	peers, err := b.peerCourses(p)
	if err != nil {
		return nil, err
	}
	all = append(all, peers...)
	for _, d := range b.doors() {
		for _, make := range []func(door, world, part) ([]*course, error){b.forward, b.reply} {
			for _, w := range worlds() {
				some, err := make(d, w, p)
				if err != nil {
					return nil, err
				}
				all = append(all, some...)
			}
		}
	}
	if !p.wantsXDP() {
		return all, nil
	}
	for _, w := range worlds() {
		some, err := b.atXDP(w, p)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// door is where a client's packets come through: what it sends by from, what it gets by to.
type door struct{ from, to hook }

type hook struct {
	name    string
	number  bpf.NearlbHook
	program *ebpf.Program
}

// doors are those of pods and of clients off the node, whose backends are on it.
func (b *bench) doors() []door {
	return []door{{
		from: hook{"from_pod", bpf.NearlbHookHOOK_FROM_POD, b.objects.FromPod},
		to:   hook{"to_pod", bpf.NearlbHookHOOK_TO_POD, b.objects.ToPod},
	}, {
		from: hook{"from_net", bpf.NearlbHookHOOK_FROM_NET, b.objects.FromNet},
		to:   hook{"to_net", bpf.NearlbHookHOOK_TO_NET, b.objects.ToNet},
	}}
}

func (b *bench) floorCourses() ([]*course, error) {
	w := worlds()[0]
	var all []*course
	for _, floor := range []struct {
		name    string
		program *ebpf.Program
	}{{floorEmpty, b.floors.FloorEmpty}, {floorHash, b.floors.FloorHashLookup}, {floorRewrite, b.floors.FloorRewrite}, {floorXDP, b.floors.FloorEmptyXdp}} {
		runner, err := b.wrap(floor.program, w.frame(w.stranger()), true)
		if err != nil {
			return nil, err
		}
		all = append(all, &course{name: floor.name, floor: true, runner: runner})
	}
	return all, nil
}

// tasks builds courses and keeps the first error.
type tasks struct {
	bench *bench
	want  func(string) bool
	all   []*course
	err   error
}

func (t *tasks) add(c course, program *ebpf.Program, f frame, clientIsSource bool) {
	if t.err != nil || !t.want(c.name) {
		return
	}
	c.runner, t.err = t.bench.wrap(program, f, clientIsSource)
	t.all = append(t.all, &c)
}

// frame is what the client sends in the middle of a connection.
func (w world) frame(to netip.AddrPort) frame {
	return frame{src: w.client(), dst: to, protocol: uint8(w.protocol), id: 0x1234, data: 0x5678}
}

// first is what it starts a connection with.
func (w world) first(to netip.AddrPort) frame {
	f := w.frame(to)
	f.syn = w.protocol == lb.TCP
	return f
}

func (b *bench) forward(d door, w world, p part) ([]*course, error) {
	t := &tasks{bench: b, want: p.wants}
	maker, err := b.wrap(d.from.program, w.first(w.service(1)), true)
	if err != nil {
		return nil, err
	}
	prefix := d.from.name + "/" + w.name + "/"
	for _, n := range p.Flows {
		c := course{name: prefix + "established", flows: n, hook: d.from.number, verdict: bpf.NearlbVerdictVERDICT_TRANSLATE_ESTABLISHED, outs: []frame{w.frame(w.backend(0))}, maker: maker}
		t.add(c, d.from.program, w.frame(w.service(1)), true)
	}
	t.addNew(w, prefix, d.from)
	miss := course{name: prefix + "miss", hook: d.from.number, verdict: bpf.NearlbVerdictVERDICT_PASS_NOT_SERVICE}
	t.add(miss, d.from.program, w.frame(w.stranger()), true)
	return t.all, t.err
}

// addNew measures against ten backends. Which of them the checked packet goes to is Maglev's affair.
func (t *tasks) addNew(w world, prefix string, from hook) {
	c := course{name: prefix + "new", hook: from.number, verdict: bpf.NearlbVerdictVERDICT_TRANSLATE_BALANCE, fresh: true}
	for n := range newBackends {
		c.outs = append(c.outs, w.first(w.backend(n)))
	}
	t.add(c, from.program, w.first(w.service(newBackends)), true)
	c.name, c.byLoad = prefix+"new_by_load", true
	t.add(c, from.program, w.first(w.loadService()), true)
}

func (b *bench) reply(d door, w world, p part) ([]*course, error) {
	t := &tasks{bench: b, want: p.wants}
	maker, err := b.wrap(d.from.program, w.first(w.service(1)), true)
	if err != nil {
		return nil, err
	}
	prefix := d.to.name + "/" + w.name + "/"
	reply := func(from netip.AddrPort) frame {
		f := w.frame(from)
		f.src, f.dst = f.dst, f.src
		return f
	}
	for _, n := range p.Flows {
		c := course{name: prefix + "established", flows: n, hook: d.to.number, verdict: bpf.NearlbVerdictVERDICT_TRANSLATE_REPLY, outs: []frame{reply(w.service(1))}, maker: maker}
		t.add(c, d.to.program, reply(w.backend(0)), false)
	}
	miss := course{name: prefix + "miss", hook: d.to.number, verdict: bpf.NearlbVerdictVERDICT_PASS_NOT_SERVICE}
	t.add(miss, d.to.program, reply(w.stranger()), false)
	return t.all, t.err
}
