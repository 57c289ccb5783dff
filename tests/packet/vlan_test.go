// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// trunk is a cable whose far end has the program of a door where frames come in. The kernel takes a tag out of a frame before that, and
// BPF_PROG_TEST_RUN has no such frames.
type trunk struct {
	*rig
	socket tagSocket // at the near end
	far    []byte    // address of the other end
}

func newTrunk(t *testing.T, r *rig) (c trunk) {
	t.Helper()
	inNewNamespace(t, func() {
		withoutIPv6(t)
		c = trunkTo(r, addDevice(t, "b"), r.program(fromPod))
		awaitCarrier(t, "b", "b-peer")
	})
	return c
}

// trunkTo is the cable to a device that addDevice made.
func trunkTo(r *rig, device netlink.Link, program *ebpf.Program) trunk {
	r.Helper()
	privileged.Attach(r, device.Attrs().Index, ebpf.AttachTCXIngress, program)
	return trunk{rig: r, socket: newTagSocket(r, device.Attrs().Name+"-peer"), far: device.Attrs().HardwareAddr}
}

// send puts a packet on the cable, with a tag.
func (c trunk) send(p packet, tag uint16) {
	c.Helper()
	frame := p.bytes()
	copy(frame, c.far)
	tagged := binary.BigEndian.AppendUint16(slices.Clone(frame[:12]), 0x8100)
	tagged = append(binary.BigEndian.AppendUint16(tagged, tag), frame[12:]...)
	_, err := unix.Write(int(c.socket), slices.Concat(make([]byte, binary.Size(offload{})), tagged))
	check(c, err)
}

// counts waits until a packet was counted, and says how.
func (c trunk) counts(p packet, tag uint16) string {
	c.Helper()
	before := c.counters()
	c.send(p, tag)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); runtime.Gosched() {
		for at, now := range c.counters() {
			if now.Packets != before[at].Packets {
				return at.verdict
			}
		}
	}
	c.Fatal("the frame was not counted")
	return ""
}

// tagSocket is a packet socket that tells tags.
type tagSocket int

func newTagSocket(t testing.TB, device string) tagSocket {
	t.Helper()
	link, err := netlink.LinkByName(device)
	check(t, err)
	fd := packetSocket(t, link.Attrs().Index)
	check(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1))
	return tagSocket(fd)
}

// vlanValid says in the auxiliary data of a frame that it came with a tag (include/uapi/linux/if_packet.h).
const vlanValid = 1 << 4

// receive takes the next frame of a protocol, and tells whether it has a tag.
func (s tagSocket) receive(t testing.TB, protocol lb.Protocol) (frame []byte, tagged bool) {
	t.Helper()
	b, control := make([]byte, 1<<16), make([]byte, 256)
	for {
		n, m, _, from, err := unix.Recvmsg(int(s), b, control, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatalf("no frame came: %v", err)
		}
		frame = b[binary.Size(offload{}):n]
		p, ok := parse(frame)
		if l, is := from.(*unix.SockaddrLinklayer); !ok || p.protocol != protocol || is && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		all, err := unix.ParseSocketControlMessage(control[:m])
		check(t, err)
		if len(all) != 1 || all[0].Header.Type != unix.PACKET_AUXDATA {
			t.Fatalf("the kernel says %d things of a frame", len(all))
		}
		return frame, binary.NativeEndian.Uint32(all[0].Data)&vlanValid != 0
	}
}

// urgent is a tag that says a priority alone.
const urgent = 5 << 13

// The stack takes a tag off that says a priority alone, as some switches and adapters put one on each frame: such frames are as others. Those of
// a VLAN are its device's.
func TestAPriorityTagIsNoVLAN(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		c := newTrunk(t, r)
		none := w.decide(service{name: "none", address: at(w.vip(12), 80), action: lb.Reject, reason: lb.ReasonNoEndpoints})
		c.publish(append(web(w), none)...)
		in, _ := webPackets(w)
		refused := in.to(at(w.vip(12), 80))
		for _, row := range []struct {
			name, verdict string
			in            packet
			tag           uint16
		}{
			{"a VLAN's", "pass_not_ip", in, urgent | 100},
			{"a new connection", "translate_balance", in, urgent},
			{"a known one", "translate_established", in.with("A", "data"), urgent},
			{"no tag but its place", "translate_established", in.with("A", "data"), 0},
			{"of no service", "pass_not_service", in.to(at(w.outside(1), 80)), urgent},
		} {
			if got := c.counts(row.in, row.tag); got != row.verdict {
				t.Errorf("%s: %s, want %s", row.name, got, row.verdict)
			}
		}
		if got := c.counts(refused, urgent); got != "reject_no_endpoints" {
			t.Fatalf("a refused one: %s", got)
		}
		protocol := lb.TCP
		if w.protocol == lb.UDP {
			protocol = w.icmp()
		}
		answer, tagged := c.socket.receive(t, protocol)
		if src, dst := addresses(t, answer); tagged || src != refused.dst.Addr() || dst != refused.src.Addr() {
			t.Errorf("the answer goes from %s to %s, with a tag: %v", src, dst, tagged)
		}
		if err := checkChecksums(answer); err != nil {
			t.Errorf("%v\n%s", err, show(answer))
		}
		if !bytes.Equal(answer[:6], podMAC) {
			t.Errorf("the answer goes to %x", answer[:6])
		}
	})
}

// What is routed by the program goes out as the stack would send it.
func TestWhatIsRoutedLosesItsPriorityTag(t *testing.T) {
	var c trunk
	var out tagSocket
	forEachSite(t, bpf.Options{}, func(s site, w world) {
		if c.rig == nil {
			c, out = trunkTo(s.rig, s.clients, s.objects.FromNet), newTagSocket(s, "nodes-peer")
			awaitCarrier(t, "clients", "clients-peer", "nodes", "nodes-peer")
		}
		c.rig = s.rig
		s.publish(far(w, 2))
		in := w.packet(at(w.outside(1), 41000), at(w.outside(10), 80))
		c.send(in, urgent)
		frame, tagged := out.receive(t, w.protocol)
		if _, dst := addresses(t, frame); tagged || dst != w.pod(2) {
			t.Errorf("to %s, with a tag: %v", dst, tagged)
		}
	}, lb.TCP, lb.UDP)
}
