// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// What a network device's frames meet first is the program at XDP. Each frame that a test runs through from_net is run through that
// before: it either passes as it is, or becomes what from_net makes of it, counted alike.

const xdp = "xdp"

// What the program at XDP tells the kernel.
const (
	xdpDrop     action = 1
	xdpPass     action = 2
	xdpTx       action = 3
	xdpRedirect action = 4
)

// loopback is the device that the kernel takes test frames for.
const loopback = 1

// serveXDP has the program at XDP serve the device of test frames, and these send.
func (r *rig) serveXDP(senders ...netlink.Link) {
	r.Helper()
	if r.noXDP {
		return
	}
	r.serveXDPBy(bpf.XDPDevice{Ifindex: loopback, MAC: hostMAC, Takes: true, Opens: r.xdpOpens}, senders...)
}

// serveXDPBy is serveXDP where the device of test frames is this one.
func (r *rig) serveXDPBy(device bpf.XDPDevice, senders ...netlink.Link) {
	r.Helper()
	r.sends = len(senders) > 0
	devices := []bpf.XDPDevice{device}
	for _, d := range senders {
		mac := d.Attrs().HardwareAddr
		if len(mac) == 0 {
			mac = make(net.HardwareAddr, 6)
		}
		devices = append(devices, bpf.XDPDevice{Ifindex: uint32(d.Attrs().Index), MAC: mac, Sends: true})
	}
	without, err := r.objects.SetXDPDevices(devices)
	check(r, err)
	if len(without) > 0 {
		r.Fatalf("no place for devices %v", without)
	}
}

// forgetWays has the program at XDP ask the routing tables again, as it does some time later by itself.
func (r *rig) forgetWays() {
	r.Helper()
	var d bpf.NearlbXdpDevice
	check(r, r.objects.XdpDevices.Lookup(uint32(loopback), &d))
	d.Epoch++
	check(r, r.objects.XdpDevices.Put(uint32(loopback), &d))
}

// throughXDP runs a frame of from_net through the program at XDP; nil: of another program, or one that the kernel refuses.
func (r *rig) throughXDP(hook string, frame []byte) *outcome {
	r.Helper()
	if r.noXDP || r.door != networkDoor || r.hook(hook) != fromNet {
		return nil
	}
	got, err := r.atXDP(frame)
	if err != nil {
		return nil
	}
	if got.action != xdpPass { // else run finds what was counted beside from_net's own verdict
		r.countedAtXDP(&got, frame)
	}
	return &got
}

// runXDP runs the program at XDP over one frame: it passes and counts nothing, or one counter has grown by one packet.
func (r *rig) runXDP(frame []byte) (outcome, error) {
	r.Helper()
	o, err := r.atXDP(frame)
	if err == nil {
		r.countedAtXDP(&o, frame)
	}
	return o, err
}

// atXDP runs it and looks at no counter.
func (r *rig) atXDP(frame []byte) (outcome, error) {
	r.Helper()
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+512)}
	code, err := r.objects.FromNetXdp.Run(&opts)
	if err != nil {
		return outcome{}, err
	}
	o := outcome{action: action(code), frame: opts.DataOut}
	if o.action == xdpPass && !bytes.Equal(frame, o.frame) && !o.isOpened(frame) {
		r.Errorf("xdp: a frame that passes changed\nin:\n%s\nout:\n%s", show(frame), show(o.frame))
	}
	return o, nil
}

// isOpened tells whether a frame that passes was taken out of the tunnel, and then leaves that alone of what came out, and what was said of it.
func (o *outcome) isOpened(in []byte) bool {
	var said bpf.NearlbOpened
	n := binary.Size(said)
	if len(o.frame) < n {
		return false
	}
	must(binary.Read(bytes.NewReader(o.frame), binary.LittleEndian, &said))
	if !bytes.Equal(o.frame[n:], slices.Concat(in[:14], in[14+int(said.Size):])) {
		return false
	}
	o.frame = o.frame[n:]
	o.opened = &bpf.NearlbTunnelPacket{Backend: bpf.NearlbAddress(said.Backend), Port: said.Port, Node: said.Node, Kind: said.Kind, Length: uint32(len(in))}
	return true
}

// afterXDP runs the program at TC: from_net over a frame as it came or, of one that was taken out of the tunnel, what from_net goes on with, as
// the kernel gives test frames no metadata.
func (r *rig) afterXDP(before *outcome, hook string, frame []byte) (action, []byte, error) {
	r.Helper()
	if before == nil || before.opened == nil || r.resumed == nil {
		return r.execute(hook, frame)
	}
	*r.resumed++
	said := make([]bpf.NearlbTunnelPacket, ebpf.MustPossibleCPU())
	for i := range said {
		said[i] = *before.opened
	}
	check(r, r.objects.TunnelPackets.Put(uint32(0), said))
	opts := ebpf.RunOptions{Data: before.frame, DataOut: make([]byte, len(frame)+1536)}
	code, err := r.runBy(hook, r.objects.TunnelOpened, &opts)
	return action(int32(code)), opts.DataOut, err
}

// compareOpened wants that from_net read the same in front of a packet as the program at XDP did.
func (o *outcome) compareOpened(r *rig, in []byte, tc outcome) {
	r.Helper()
	if o == nil || o.opened == nil || r.resumed != nil {
		return
	}
	var read []bpf.NearlbTunnelPacket
	check(r, r.objects.TunnelPackets.Lookup(uint32(0), &read))
	same := slices.ContainsFunc(read, func(p bpf.NearlbTunnelPacket) bool {
		if p.Port == 0 {
			p.Backend = bpf.NearlbAddress{} // of another packet
		}
		return p == *o.opened
	})
	if !same || tc.verdict == "drop_tunnel_source" || tc.verdict == "drop_tunnel_cookie" {
		r.Errorf("xdp took a packet out of the tunnel: %+v; from_net: %s, %+v\n%s", *o.opened, tc.verdict, read, show(in))
	}
}

// countedAtXDP gives an outcome the verdict that was counted for it.
func (r *rig) countedAtXDP(o *outcome, frame []byte) {
	r.Helper()
	now := r.countersAfter(xdp)
	for c, value := range now {
		before := r.counted[c]
		if value == before {
			continue
		}
		if o.verdict != "" || c.hook != xdp || value.Packets != before.Packets+1 || value.Bytes != before.Bytes+uint64(len(frame)) {
			r.Errorf("xdp: counter %s/%s grew from %v to %v for a frame of %d, beside verdict %q", c.hook, c.verdict, before, value, len(frame), o.verdict)
		}
		o.verdict = c.verdict
	}
	r.counted = now
	if (o.action == xdpPass) != (o.verdict == "") {
		r.Errorf("xdp: action %d, verdict %q\nin:\n%s\nout:\n%s", o.action, o.verdict, show(frame), show(o.frame))
	}
}

// compare wants of from_net what the program at XDP did with the frame. Addresses of devices are the kernel's to write there.
func (o *outcome) compare(r *rig, in []byte, tc outcome) {
	r.Helper()
	o.compareOpened(r, in, tc)
	if o == nil || o.action == xdpPass {
		return
	}
	want := map[action]action{xdpDrop: actShot, xdpTx: actRedirect, xdpRedirect: actRedirect}[o.action]
	if tc.verdict != o.verdict || tc.action != want || o.action != xdpDrop && !bytes.Equal(o.frame[12:], tc.frame[12:]) {
		r.Errorf("xdp: action %d, %s; from_net: action %d, %s\nin:\n%s\npacket out (-from_net +xdp)\n%s", o.action, o.verdict, tc.action, tc.verdict,
			show(in), cmp.Diff(show(tc.frame), show(o.frame)))
	}
}

// leadBack has the ways in these slots lead out of the device of test frames, by which they came.
func (r *rig) leadBack(slots []uint32) {
	r.Helper()
	for _, slot := range slots {
		r.editWaysOf(slot, func(way *bpf.NearlbXdpWay) { way.Ifindex = loopback })
	}
}
