// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/tests/privileged"
)

// BPF_PROG_TEST_RUN cannot make packets with partial checksums, of segments still to be cut (GSO), with data outside the
// linear part, or shorter than an IP header. Packet sockets can: PACKET_VNET_HDR carries what a driver would know.

// patience is how long a packet may take to come out, and a device to be ready, on a machine that has other things to do.
const patience = time.Minute

// wires are the two ends of a veth pair, each with a packet socket. What one sends passes its program on the way out.
type wires struct {
	*rig
	ends map[string]int // hook of the end's program -> socket
}

func (wires) other(hook string) string {
	if hook == fromPod {
		return toPod
	}
	return fromPod
}

// newWires builds the pair in a network namespace of its own, which goes when the test ends.
func newWires(t *testing.T, r *rig) wires {
	t.Helper()
	w := wires{rig: r, ends: map[string]int{}}
	inNewNamespace(t, func() {
		withoutIPv6(t)
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU = "a", 9000
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "b", PeerMTU: 9000}))
		for name, program := range map[string]*ebpf.Program{"a": r.program(fromPod), "b": r.program(toPod)} {
			device, err := netlink.LinkByName(name)
			check(t, err)
			check(t, netlink.LinkSetUp(device))
			privileged.Attach(t, device.Attrs().Index, ebpf.AttachTCXEgress, program)
			w.ends[map[string]string{"a": fromPod, "b": toPod}[name]] = packetSocket(t, device.Attrs().Index)
		}
		awaitCarrier(t, "a", "b")
	})
	return w
}

// withoutIPv6 has devices of this namespace send nothing by themselves.
func withoutIPv6(t *testing.T) {
	t.Helper()
	for _, of := range []string{"all", "default"} {
		check(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+of+"/disable_ipv6", []byte("1"), 0))
	}
}

// awaitCarrier waits until the devices send: the kernel gives them a queue once both ends are up.
func awaitCarrier(t *testing.T, names ...string) {
	t.Helper()
	for deadline := time.Now().Add(patience); len(names) > 0; {
		device, err := netlink.LinkByName(names[0])
		check(t, err)
		if device.Attrs().OperState == netlink.OperUp {
			names = names[1:]
		} else if time.Now().After(deadline) {
			t.Fatalf("device %s stays %s", names[0], device.Attrs().OperState)
		} else {
			runtime.Gosched()
		}
	}
}

func inNewNamespace(t testing.TB, build func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	check(t, err)
	defer home.Close()
	made, err := netns.New()
	check(t, err)
	defer made.Close() // the sockets keep it
	defer netns.Set(home)
	build()
}

func packetSocket(t testing.TB, device int) int {
	t.Helper()
	const all = uint16(unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	check(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
	check(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}))
	check(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: device}))
	return fd
}

// offload is struct virtio_net_hdr (include/uapi/linux/virtio_net.h): what a sender leaves to the device.
type offload struct {
	Flags, GSO  uint8
	HeaderSize  uint16
	SegmentSize uint16
	Start       uint16 // where the checksum begins, and
	Offset      uint16 // where from there it is stored
}

const (
	needsChecksum = 1
	gsoTCP4       = 1
	gsoTCP6       = 4
	gsoUDP        = 5
)

// send puts a frame on the wire at the end that has this hook's program; false when the kernel does not take it.
func (w wires) send(hook string, o offload, frame []byte) bool {
	w.Helper()
	var b bytes.Buffer
	check(w, binary.Write(&b, binary.LittleEndian, o))
	b.Write(frame)
	_, err := unix.Write(w.ends[hook], b.Bytes())
	if err != nil && !errors.Is(err, unix.EINVAL) {
		w.Fatalf("send frame of %d bytes: %v", len(frame), err)
	}
	return err == nil
}

// receive takes the frame that came out behind the hook's program.
func (w wires) receive(hook string) (offload, []byte) {
	w.Helper()
	b := make([]byte, 1<<17)
	var o offload
	for {
		n, from, err := unix.Recvfrom(w.ends[w.other(hook)], b, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			w.Fatalf("%s: nothing came out: %v; counters %v", hook, err, w.counters())
		}
		if l, ok := from.(*unix.SockaddrLinklayer); ok && l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		check(w, binary.Read(bytes.NewReader(b), binary.LittleEndian, &o))
		return o, b[binary.Size(o):n]
	}
}

// partial leaves p's transport checksum to the device: in its place is the sum over the pseudo header, as the stack does.
func partial(p packet) (offload, []byte) {
	frame := p.bytes()
	ip, _ := parse(frame)
	o := offload{Flags: needsChecksum, Start: uint16(14 + ip.header), Offset: 6}
	if p.protocol == lb.TCP {
		o.Offset = 16
	}
	binary.BigEndian.PutUint16(frame[o.Start+o.Offset:], uint16(ip.pseudo()))
	return o, frame
}

// segmented is a packet that the device would cut into segments of 1000 bytes of data.
func segmented(w world, p packet) (offload, []byte) {
	p.payload = bytes.Repeat([]byte("0123456789abcdef"), 500)
	o, frame := partial(p)
	o.SegmentSize, o.HeaderSize, o.GSO = 1000, uint16(len(frame)-len(p.payload)), gsoTCP4
	switch {
	case w.protocol == lb.UDP:
		o.GSO = gsoUDP
	case w.v6:
		o.GSO = gsoTCP6
	}
	return o, frame
}

func TestPartialChecksumsAndSegmentsStayTheDevicesAffair(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		wires := newWires(t, r)
		wires.publish(twins(w)...)
		for name, shape := range wireShapes(t, w) {
			wires.evict()
			in := w.packet(at(w.pod(1), 41000), at(w.vip(10), 80)).with("A", "data of any length")
			wires.compare(name+", new", fromPod, w, shape, in, in.to(at(w.pod(2), 8080)))
			wires.compare(name+", established", fromPod, w, shape, in, in.to(at(w.pod(2), 8080)))
			reply := in.to(at(w.pod(2), 8080)).reply("A", "an answer")
			wires.compare(name+", reply", toPod, w, shape, reply, reply.from(in.dst))
			// A clash changes the source port, too: the transport checksum does not cover it yet.
			wires.counted = wires.counters()
			second := wires.start(in.to(at(w.vip(11), 80)))
			wires.compare(name+", other source port", fromPod, w, shape, second.in, second.out)
			reply = second.out.reply("A", "an answer")
			wires.compare(name+", reply to another port", toPod, w, shape, reply, reply.from(second.in.dst).to(second.in.src))
		}
	})
}

// compare sends in and wants out, both in the shape.
func (w wires) compare(name, hook string, world world, shape func(world, packet) (offload, []byte), in, out packet) {
	w.Helper()
	o, frame := shape(world, in)
	if !w.send(hook, o, frame) {
		w.Fatalf("%s: the kernel does not take the frame", name)
	}
	wantOffload, want := shape(world, out)
	gotOffload, got := w.receive(hook)
	wantOffload.HeaderSize, gotOffload.HeaderSize = 0, 0
	if gotOffload != wantOffload {
		w.Errorf("%s: left to the device: %+v, want %+v", name, gotOffload, wantOffload)
	}
	if !bytes.Equal(want, got) {
		w.Errorf("%s:\nwant:\n%.2000s\ngot:\n%.2000s", name, show(want), show(got))
	}
}

// The kernel keeps most of a large packet outside the linear part, and may keep all but the Ethernet header there.
func TestHeadersOutsideTheLinearPartAreFound(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		wires := newWires(t, r)
		wires.publish(web(w)...)
		in, out := webPackets(w)
		data := string(bytes.Repeat([]byte("0123456789abcdef"), 500))
		in, out = in.with("A", data), out.with("A", data)
		shape := func(_ world, p packet) (offload, []byte) { return offload{HeaderSize: 14}, p.bytes() }
		for _, name := range []string{"new", "established"} {
			wires.compareData(name, fromPod, w, shape, in, out)
		}
		reply := out.reply("A", data)
		wires.compareData("reply", toPod, w, shape, reply, reply.from(in.dst))
		for _, n := range quotations() {
			e := failures()[2].of(out, w.router(), n)
			want := failures()[2].of(in, w.router(), n)
			wires.compareData(fmt.Sprintf("error, %d bytes quoted", n), toPod, w, shape, e, want)
		}
	})
}

// compareData is compare without what is left to the device.
func (w wires) compareData(name, hook string, world world, shape func(world, packet) (offload, []byte), in, out packet) {
	w.Helper()
	o, frame := shape(world, in)
	if !w.send(hook, o, frame) {
		w.Fatalf("%s: the kernel does not take the frame", name)
	}
	if _, got := w.receive(hook); !bytes.Equal(out.bytes(), got) {
		w.Errorf("%s:\nwant:\n%.2000s\ngot:\n%.2000s", name, show(out.bytes()), show(got))
	}
}

// Frames shorter than an IP header pass as they are, each counted once.
func TestFramesShorterThanAnIPHeaderPass(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP)), func(t *testing.T, r *rig, w world) {
		wires := newWires(t, r)
		wires.publish(web(w)...)
		in, _ := webPackets(w)
		header := map[bool]int{false: 34, true: 54}[w.v6]
		for hook, p := range map[string]packet{fromPod: in, toPod: in.reply("A", "")} {
			for n := 14; n < header; n++ {
				before := wires.total()
				if !wires.send(hook, offload{}, p.bytes()[:n]) {
					continue
				}
				if _, got := wires.receive(hook); !bytes.Equal(got, p.bytes()[:n]) {
					t.Errorf("%s, %d bytes: came out as %x", hook, n, got)
				}
				if counted := wires.total() - before; counted != 1 {
					t.Errorf("%s, %d bytes: counted %d times", hook, n, counted)
				}
			}
		}
	})
}

// finish does what a device does with a checksum that was left to it.
func (o offload) finish(frame []byte) []byte {
	if o.Flags&needsChecksum == 0 {
		return frame
	}
	done := bytes.Clone(frame)
	binary.BigEndian.PutUint16(done[o.Start+o.Offset:], ^uint16(sum(0, done[o.Start:])))
	return done
}

// An answer made of a packet with a partial checksum is whole, whatever a device still does to it.
func TestAnswersToPacketsWithPartialChecksumsAreWhole(t *testing.T) {
	forEachOf(t, bpf.Options{}, through(framedOnly(), worlds(lb.TCP, lb.UDP)), func(t *testing.T, r *rig, w world) {
		wires := newWires(t, r)
		wires.publish(deny(lb.Reject, lb.ReasonNoEndpoints)(w)...)
		for what, change := range changes(w) {
			for _, size := range []int{0, 1, 100, 1000} {
				in, _ := webPackets(w)
				in.payload = bytes.Repeat([]byte{7}, size)
				wires.answersWhole(fmt.Sprintf("%s, %d bytes", what, size), change(in))
			}
		}
	})
}

// answersWhole sends a packet that is refused, with a checksum that is left to the device and with one that is not.
func (w wires) answersWhole(what string, in packet) {
	w.Helper()
	for name, shape := range map[string]func(packet) (offload, []byte){
		"partial": partial,
		"whole":   func(p packet) (offload, []byte) { return offload{}, p.bytes() },
	} {
		if in.noChecksum && name == "partial" {
			continue
		}
		o, frame := shape(in)
		if !w.send(fromPod, o, frame) {
			w.Fatal("the kernel does not take the frame")
		}
		left, got := w.receive(fromPod)
		got = left.finish(got)
		answer, ok := parse(got)
		if !ok || !bytes.Equal(answer.dst, in.src.Addr().AsSlice()) {
			w.Fatalf("%s, %s: no answer came out (%v)\n%s", what, name, w.counters(), show(got))
		}
		if answer.protocol == in.protocol && answer.protocol != lb.TCP {
			w.Fatalf("%s, %s: the packet itself came back", what, name)
		}
		if err := answer.checkOuter(got[14:]); err != nil {
			w.Errorf("%s, %s: %v, left to the device: %+v\n%s", what, name, err, left, show(got))
		}
	}
}
