// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// carriedFrom is a connection that came through the tunnel from the node of a number.
func carriedFrom(node uint16) bpf.NearlbFlow {
	at := hostAddress(1)
	f := bpf.NearlbFlow{Word: flowLive, Client: address16(hostAddress(2).Addr()), Frontend: address16(at.Addr()), KeyPort: swap16(41000),
		TwinPort: swap16(41000), FrontendPort: swap16(at.Port()), Protocol: 6, Backend: 1, Generation: 1, Flags: flowCarried,
		Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)}
	setCarriedBy(&f, node)
	return f
}

// The tables that a connection is carried to may know the node that it came from by another number, or not at all: its answers would go to
// whoever has the old one here.
func TestTheNodeThatAConnectionCameFromHasItsNumberHere(t *testing.T) {
	s := memoryStore(tinySizes())
	s.clock = standing{}
	row := backendRow{Address: address16(hostAddress(1).Addr()), Port: 80, State: stateActive, Generation: 1, Service: 1}
	write(s.backends, 1, row)
	known := &identities{to: s, old: map[uint32]backendRow{1: row}, backends: map[uint32]uint32{1: 1}, nodes: map[uint16]uint16{3: 5, 5: 3}}
	c := &Carrier{store: s, wrote: map[uint32]carriedFlow{}}
	settings := read[bpf.NearlbSettings](s.settings, 0)
	carry := func(from uint16, touched uint32) {
		t.Helper()
		f := carriedFrom(from)
		f.Touched = touched
		if !known.translate(&f) || !c.put(f, 0, &settings, newExpiry(s.clock)) {
			t.Fatal("a connection is left behind")
		}
	}
	want := func(node uint16, when string) {
		t.Helper()
		n := 0
		for _, f := range liveFlows(s) {
			if n++; carriedBy(&f) != node || f.Seen&^carriedNode != carriedFrom(0).Seen {
				t.Errorf("%s: it came from node %d, and has seen %#x; want node %d", when, carriedBy(&f), f.Seen&^carriedNode, node)
			}
		}
		if n != 1 {
			t.Errorf("%s: %d entries", when, n)
		}
	}
	carry(3, 0)
	want(5, "carried")
	carry(5, 1)
	want(3, "another node's since, over there")
	for place, f := range liveFlows(s) {
		setCarriedBy(&f, 9)
		putFlow(s, place, f)
	}
	carry(5, 1)
	want(9, "another node's since, here")
	carry(7, 2)
	want(0, "of a node that is not known here")
}

// The number of a node that is gone stays its own for as long as a connection that came from there names it, over a restart as well, which would
// give it to the next new Node.
func TestANodesNumberStaysWhileAConnectionNamesIt(t *testing.T) {
	sizes := tinySizes()
	s := memoryStore(sizes)
	b := newBench(t, s)
	configure := func(names ...string) {
		t.Helper()
		if err := b.Configure(tunnelConfig(names...)); err != nil {
			t.Fatal(err)
		}
	}
	numbers := func() map[string]uint16 {
		all := map[string]uint16{}
		for key, text := range s.names.all() {
			if key.Kind == nodeName {
				all[text] = uint16(key.Id)
			}
		}
		return all
	}
	configure("n1", "n2")
	gone := numbers()["n2"]
	putFlow(s, 0, carriedFrom(gone))
	configure("n1")
	b.later()
	b = newBench(t, s)
	configure("n1", "n3")
	b.later()
	if now := numbers(); now["n2"] != gone || now["n3"] == gone {
		t.Errorf("node n2 had number %d, which a connection names; now the numbers are %v", gone, now)
	}
	configure("n1", "n2", "n3")
	if now := numbers(); now["n2"] != gone {
		t.Errorf("n2 is back, and its number is not: %v", now)
	}
	configure("n1", "n3")
	putFlow(s, 0, bpf.NearlbFlow{})
	b.later()
	if now := numbers(); now["n2"] != 0 || len(now) != 2 || b.Waiting() {
		t.Errorf("no connection names n2, and the numbers are %v; something waits: %v", now, b.Waiting())
	}
}
