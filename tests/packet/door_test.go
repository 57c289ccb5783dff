// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// door is where the client's packets come through. Rows name the hooks of a pod's door; at another one, fromPod and toPod
// stand for the hooks there.
type door string

const (
	podDoor     door = ""        // a pod's device
	networkDoor door = "_net"    // a network device; every backend is this node's unless a service says otherwise
	layer3Door  door = "_layer3" // a network device without an Ethernet header
)

func doors() []door { return []door{podDoor, networkDoor, layer3Door} }

// podsOnly and networkOnly are for rows of one side.
func podsOnly() []door    { return []door{podDoor} }
func networkOnly() []door { return []door{networkDoor, layer3Door} }

// framedOnly is for rows about what layer 3 has not, or what the rig cannot show of it.
func framedOnly() []door { return []door{podDoor, networkDoor} }

// through are the worlds at each of the doors; where each frame counts, each world at one of them, in turn, so that each door has both
// families and all protocols between the tests.
func through(doors []door, worlds []world) []world {
	var all []world
	if few {
		for i, w := range worlds {
			w.door = doors[(i+i/2)%len(doors)]
			all = append(all, w)
		}
		return all
	}
	for _, d := range doors {
		for _, w := range worlds {
			w.door = d
			all = append(all, w)
		}
	}
	return all
}

// everywhere are both families of the protocols at every door.
func everywhere(protocols ...lb.Protocol) []world { return through(doors(), worlds(protocols...)) }

// forEachDoor runs a test for both families of each protocol at every door, one rig for all of them.
func forEachDoor(t *testing.T, o bpf.Options, test func(*testing.T, *rig, world), protocols ...lb.Protocol) {
	t.Helper()
	forEachOf(t, o, everywhere(protocols...), test)
}

func forEachOf(t *testing.T, o bpf.Options, worlds []world, test func(*testing.T, *rig, world)) {
	t.Helper()
	r := newRig(t, o)
	for _, w := range worlds {
		t.Run(w.String(), func(t *testing.T) { test(t, r.in(t).at(w), w) })
	}
}

// at is the rig at the world's door.
func (r *rig) at(w world) *rig {
	there := *r
	there.door = w.door
	return &there
}

// hook is the name of the program that stands for a row's hook at the rig's door.
func (r *rig) hook(name string) string {
	if r.door == podDoor {
		return name
	}
	switch name {
	case fromPod:
		return fromNet
	case toPod:
		return toNet
	}
	return name
}

func (r *rig) program(hook string) *ebpf.Program {
	r.Helper()
	switch r.hook(hook) {
	case toPod:
		return r.objects.ToPod
	case fromNet, toNet:
		return r.networkProgram(r.hook(hook))
	case sock:
		return r.objects.SockExplain
	}
	return r.objects.FromPod
}

func (r *rig) networkProgram(hook string) *ebpf.Program {
	r.Helper()
	from, to := r.objects.FromNet, r.objects.ToNet
	if r.door == layer3Door {
		var err error
		from, to, err = r.objects.Layer3()
		check(r, err)
	}
	if hook == toNet {
		return to
	}
	return from
}

// The kernel runs programs over Ethernet frames: it takes the protocol from bytes 12 and 13 and wants a whole IP header behind
// the first 14. A packet without an Ethernet header may pass for one: those two bytes are its source address's, which
// in layer 3 worlds look like the number of the protocol.

const ethernetHeader = 14

// address is what stands for an address in the door's worlds.
func (d door) address(a netip.Addr) netip.Addr {
	if d != layer3Door {
		return a
	}
	b := a.As16()
	if a.Is4() {
		return netip.AddrFrom4([4]byte{0x08, 0x00, b[14], b[15]})
	}
	b[4], b[5], b[6], b[7] = 0x86, 0xdd, b[4], b[5]
	return netip.AddrFrom16(b)
}

// prefix is the same of a network.
func (d door) prefix(p string) netip.Prefix {
	prefix := netip.MustParsePrefix(p)
	return netip.PrefixFrom(d.address(prefix.Addr()), prefix.Bits())
}

// bare is what a device without an Ethernet header would show of a frame, filled up to what the kernel wants.
func bare(frame []byte) []byte {
	least := ethernetHeader + 20
	if frame[12] == 0x86 {
		least = ethernetHeader + 40
	}
	packet := slices.Clone(frame[ethernetHeader:])
	return append(packet, make([]byte, max(0, least-len(packet)))...)
}

// framed is the reverse: out came of bare(in), and goes back where the action says so.
func framed(in, out []byte, a action) []byte {
	if len(out) == len(bare(in)) {
		out = out[:len(in)-ethernetHeader]
	}
	header := in[:ethernetHeader]
	if a == actRedirect {
		header = slices.Concat(in[6:12], in[:6], in[12:14])
	}
	return slices.Concat(header, out)
}

// length is how many bytes the program sees of a frame.
func (r *rig) length(frame []byte) int {
	if r.door == layer3Door {
		return len(bare(frame))
	}
	return len(frame)
}

// pass runs a program over the frame as the rig's door would show it.
func (r *rig) pass(hook string, opts ebpf.RunOptions) (action, []byte, error) {
	r.Helper()
	frame := opts.Data
	if r.door == layer3Door {
		opts.Data = bare(frame)
	}
	opts.DataOut = make([]byte, len(frame)+1536)
	code, err := r.runBy(hook, r.program(hook), &opts)
	if err != nil {
		return 0, nil, err
	}
	a := action(int32(code))
	if r.door == layer3Door {
		return a, framed(frame, opts.DataOut, a), nil
	}
	return a, opts.DataOut, nil
}

// runBy runs a program over a frame that comes by the rig's device, to that: before and after, it is to the rig's host.
func (r *rig) runBy(hook string, program *ebpf.Program, opts *ebpf.RunOptions) (uint32, error) {
	if r.by == nil || r.hook(hook) != fromNet {
		return program.Run(opts)
	}
	opts.Context = struct {
		_       [40]byte // of struct __sk_buff in front of it
		Ifindex uint32
	}{Ifindex: uint32(r.by.Attrs().Index)}
	mac := r.by.Attrs().HardwareAddr
	if opts.Data = slices.Clone(opts.Data); bytes.Equal(opts.Data[:6], hostMAC) {
		copy(opts.Data, mac)
	}
	code, err := program.Run(opts)
	for at := 0; err == nil && at < 12; at += 6 {
		if bytes.Equal(opts.DataOut[at:at+6], mac) {
			copy(opts.DataOut[at:], hostMAC)
		}
	}
	return code, err
}
