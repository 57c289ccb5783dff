// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
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

// tap is a device whose wire ends in this process: with PACKET_VNET_HDR's words for what is left to it, or, where it has no
// offloads, with packets that the kernel has cut and summed.
type tap struct {
	fd     int
	link   netlink.Link
	layer3 bool // tun: packets without an Ethernet header
}

const (
	tapOffloads  = 0x01 | 0x02 | 0x04 // TUN_F_CSUM, TSO4, TSO6 (include/uapi/linux/if_tun.h)
	udpOffloads  = 0x20 | 0x40        // TUN_F_USO4, USO6: Linux 6.2
	setOffloads  = 0x400454d0         // TUNSETOFFLOAD
	setInterface = 0x400454ca         // TUNSETIFF
)

// addTap makes a device in the thread's network namespace; it goes when the test ends.
func addTap(t testing.TB, name string, layer3, offloads bool, addresses ...string) tap {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	request, err := unix.NewIfreq(name)
	check(t, err)
	mode := map[bool]uint16{false: unix.IFF_TAP, true: unix.IFF_TUN}[layer3]
	request.SetUint16(mode | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	check(t, unix.IoctlIfreq(fd, setInterface, request))
	if offloads {
		if err := unix.IoctlSetInt(fd, setOffloads, tapOffloads|udpOffloads); err == unix.EINVAL {
			check(t, unix.IoctlSetInt(fd, setOffloads, tapOffloads))
		} else {
			check(t, err)
		}
	}
	return tap{fd, upDevice(t, name, addresses...), layer3}
}

// send lets the device receive a frame, to its own address.
func (d tap) send(t testing.TB, o offload, frame []byte) {
	t.Helper()
	frame = bytes.Clone(frame)
	copy(frame, d.link.Attrs().HardwareAddr)
	if d.layer3 {
		frame = frame[ethernetHeader:]
		o.Start, o.HeaderSize = less(o.Start), less(o.HeaderSize)
	}
	var b bytes.Buffer
	check(t, binary.Write(&b, binary.LittleEndian, o))
	b.Write(frame)
	_, err := unix.Write(d.fd, b.Bytes())
	check(t, err)
}

// mac is the device's address, zeros where it has none.
func (d tap) mac() []byte {
	mac := make([]byte, 6)
	copy(mac, d.link.Attrs().HardwareAddr)
	return mac
}

func less(offset uint16) uint16 { return max(offset, ethernetHeader) - ethernetHeader }

// receive takes the next frame that leaves by the device to somebody who was told about: the namespace also says what nobody asked
// for. Offsets count from the Ethernet header, which is made up where there is none.
func (d tap) receive(t testing.TB) (offload, []byte) {
	t.Helper()
	b := make([]byte, 1<<17)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n, err := unix.Read(d.fd, b)
		if err == unix.EAGAIN {
			if _, err = unix.Poll([]unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}, 5000); err != unix.EINTR {
				check(t, err)
			}
			continue
		}
		check(t, err)
		var o offload
		check(t, binary.Read(bytes.NewReader(b), binary.LittleEndian, &o))
		frame := bytes.Clone(b[binary.Size(o):n])
		if d.layer3 {
			kind := map[byte][]byte{4: {0x08, 0x00}, 6: {0x86, 0xdd}}[frame[0]>>4]
			frame = slices.Concat(podMAC, d.mac(), kind, frame)
			o.Start += ethernetHeader
		}
		if o.Flags&needsChecksum == 0 {
			o.Start = 0
		}
		if p, ok := parse(frame); ok && bytes.Equal(frame[:6], podMAC) && !linkLocal(p.src) {
			o.HeaderSize = 0
			return o, frame
		}
	}
	t.Fatalf("nothing left by %s", d.link.Attrs().Name)
	return offload{}, nil
}

func linkLocal(address []byte) bool {
	a, _ := netip.AddrFromSlice(address)
	return a.IsLinkLocalUnicast() || a.IsUnspecified()
}

// crossroads is a site whose devices' wires end in this process: towards clients and towards the other nodes.
type crossroads struct {
	site
	outer, inner tap
}

// eachCrossroads runs a test for clients behind Ethernet and behind a device without it, in every world.
func eachCrossroads(t *testing.T, offloads bool, test func(crossroads, world)) {
	t.Helper()
	for name, layer3 := range map[string]bool{"ethernet": false, "layer 3": true} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				c := newCrossroads(t, layer3, offloads)
				for _, w := range worlds(lb.TCP, lb.UDP) {
					w.door = networkDoor
					sub := c
					sub.rig = c.rig.in(t).at(w)
					sub.publish(far(w, 2))
					if test(sub, w); t.Failed() {
						t.Errorf("in world %s", w)
						return
					}
				}
			})
		})
	}
}

func newCrossroads(t *testing.T, layer3, offloads bool) crossroads {
	t.Helper()
	r := newRig(t, bpf.Options{})
	check(t, os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
	outer := addTap(t, "clients", layer3, offloads, "192.0.2.2/24", "2001:db8:2::2/64")
	inner := addTap(t, "nodes", false, offloads, "172.31.0.1/24", "fd00:31::1/64")
	fromClients := r.objects.FromNet
	if layer3 {
		var err error
		fromClients, _, err = r.objects.Layer3()
		check(t, err)
	}
	attachIngress(t, outer.link, fromClients)
	attachIngress(t, inner.link, r.objects.FromNet)
	return crossroads{joinSite(t, site{r, outer.link, inner.link}), outer, inner}
}

func attachIngress(t testing.TB, device netlink.Link, program *ebpf.Program) {
	t.Helper()
	privileged.Attach(t, device.Attrs().Index, ebpf.AttachTCXIngress, program)
}

// carries sends in, in the shape, and gives what leaves on the other side.
func (c crossroads) carries(w world, from, to tap, shape wireShape, in packet) (offload, []byte) {
	c.Helper()
	o, frame := shape(w, in)
	from.send(c, o, frame)
	return to.receive(c)
}

// wireShape makes a packet into a frame and says what is left to the device.
type wireShape func(world, packet) (offload, []byte)

// wireShapes are those that the kernel has for the world's protocol.
func wireShapes(t testing.TB, w world) map[string]wireShape {
	t.Helper()
	all := map[string]wireShape{"whole": whole, "partial checksum": func(_ world, p packet) (offload, []byte) { return partial(p) }}
	if w.protocol == lb.TCP || takesUDPSegments(t) {
		all["segments"] = segmented
	}
	return all
}

func whole(_ world, p packet) (offload, []byte) { return offload{}, p.bytes() }

// takesUDPSegments says whether devices may be left to cut datagrams, and packet sockets to send such ones (Linux 6.2).
func takesUDPSegments(t testing.TB) bool {
	t.Helper()
	takes := false
	inNewNamespace(t, func() { // not among the machine's own devices
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		check(t, err)
		defer unix.Close(fd)
		request, err := unix.NewIfreq("segments")
		check(t, err)
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		check(t, unix.IoctlIfreq(fd, setInterface, request))
		err = unix.IoctlSetInt(fd, setOffloads, tapOffloads|udpOffloads)
		if err != unix.EINVAL {
			check(t, err)
		}
		takes = err == nil
	})
	return takes
}

// open starts a connection and says how its server sees it.
func (c crossroads) open(w world, n int) talk {
	c.Helper()
	in := w.packet(at(w.outside(n), 41000), at(w.outside(10), 80))
	_, frame := c.carries(w, c.outer, c.inner, whole, in)
	src, dst := endpoints(c, frame)
	if src.Addr() != w.own() || dst != at(w.pod(2), 8080) {
		c.Fatalf("left from %s to %s", src, dst)
	}
	return talk{in, in.from(src).to(dst)}
}

// What the stack would leave to a device passes SNAT as it came, and is left to the device that it leaves by.
func TestPartialChecksumsAndSegmentsPassSNAT(t *testing.T) {
	eachCrossroads(t, true, func(c crossroads, w world) {
		talk := c.open(w, 1)
		for name, shape := range wireShapes(c, w) {
			for range 2 {
				c.compare(name+", to the server", w, c.outer, c.inner, shape, talk.in.with("A", "data of any length"), talk.out.with("A", "data of any length"))
				answer := talk.out.reply("A", "an answer")
				c.compare(name+", to the client", w, c.inner, c.outer, shape, answer, answer.from(talk.in.dst).to(talk.in.src))
			}
		}
	})
}

// compare wants what in becomes to be what a router would send of out in the same shape.
func (c crossroads) compare(name string, w world, from, to tap, shape wireShape, in, out packet) {
	c.Helper()
	gotOffload, got := c.carries(w, from, to, shape, in)
	wantOffload, want := shape(w, out)
	wantOffload.HeaderSize = 0
	want = slices.Concat(podMAC, to.mac(), aged(want)[12:])
	if gotOffload != wantOffload {
		c.Errorf("%s: left to the device: %+v, want %+v", name, gotOffload, wantOffload)
	}
	if !bytes.Equal(want, got) {
		c.Errorf("%s:\nwant:\n%.2000s\ngot:\n%.2000s", name, show(want), show(got))
	}
}

// A device without offloads gets whole packets of its MTU, whose checksums are right.
func TestReceiversWithoutOffloadsCanCheckWhatPassedSNAT(t *testing.T) {
	eachCrossroads(t, false, func(c crossroads, w world) {
		talk := c.open(w, 1)
		for name, shape := range wireShapes(c, w) {
			c.gathers(name+", to the server", w, c.outer, c.inner, shape, talk.in.with("A", "data of any length"), talk.out)
			answer := talk.out.reply("A", "an answer")
			c.gathers(name+", to the client", w, c.inner, c.outer, shape, answer, answer.from(talk.in.dst).to(talk.in.src))
		}
	})
}

// gathers wants packets from and to the addresses of out, with the data of in.
func (c crossroads) gathers(name string, w world, from, to tap, shape wireShape, in, out packet) {
	c.Helper()
	o, sent := shape(w, in)
	from.send(c, o, sent)
	whole, _ := parse(sent)
	header := map[lb.Protocol]int{lb.TCP: 20, lb.UDP: 8}[w.protocol]
	want, got := whole.transport[header:], []byte(nil)
	for len(got) < len(want) {
		left, frame := to.receive(c)
		if left != (offload{}) {
			c.Errorf("%s: left to a device that can nothing: %+v", name, left)
		}
		if err := checkChecksums(frame); err != nil {
			c.Fatalf("%s: %v\n%s", name, err, show(frame))
		}
		if src, dst := endpoints(c, frame); src != out.src || dst != out.dst || len(frame) > 1514 {
			c.Errorf("%s: %d bytes from %s to %s, want from %s to %s", name, len(frame), src, dst, out.src, out.dst)
		}
		p, _ := parse(frame)
		got = append(got, p.transport[header:]...)
	}
	if !bytes.Equal(want, got) {
		c.Errorf("%s: the data changed on its way", name)
	}
}

// Segments too large for the way are answered to the sender, with right checksums, about what was sent; so is a packet that ends here. Both
// ways, and also where the packet's own checksum was not there yet.
func TestWhatDoesNotPassSNATIsAnsweredOverTheWire(t *testing.T) {
	eachCrossroads(t, false, func(c crossroads, w world) {
		talk := c.open(w, 1)
		for name, shape := range wireShapes(c, w) {
			wide := func(w world, p packet) (offload, []byte) {
				o, frame := shape(w, p)
				if o.SegmentSize != 0 {
					o.SegmentSize = 1390
				}
				return o, frame
			}
			in, answer := talk.in.with("A", string(make([]byte, 1390))), talk.out.reply("A", string(make([]byte, 1390)))
			c.narrow(c.inner, func() { c.refuses(name+", to the server", w, c.outer, wide, in) })
			c.narrow(c.outer, func() { c.refuses(name+", to the client", w, c.inner, wide, answer) })
			if name == "segments" {
				continue // several packets
			}
			dying := func(w world, p packet) (offload, []byte) {
				o, frame := shape(w, p)
				for range 62 {
					frame = aged(frame)
				}
				return o, frame
			}
			c.refuses(name+", last hop to the server", w, c.outer, dying, talk.in.with("A", "text"))
			c.refuses(name+", last hop to the client", w, c.inner, dying, talk.out.reply("A", "text"))
		}
	})
}

// narrow gives the device a small MTU meanwhile.
func (c crossroads) narrow(d tap, meanwhile func()) {
	c.Helper()
	check(c, netlink.LinkSetMTU(d.link, 1400))
	c.forgetWays()
	meanwhile()
	check(c, netlink.LinkSetMTU(d.link, 1500))
}

// refuses wants an error about in back from the address that in is for.
func (c crossroads) refuses(name string, w world, from tap, shape wireShape, in packet) {
	c.Helper()
	o, sent := shape(w, in)
	from.send(c, o, sent)
	left, frame := from.receive(c)
	p, ok := parse(frame)
	if !ok || left != (offload{}) {
		c.Fatalf("%s: no whole answer, left to the device %+v\n%s", name, left, show(frame))
	}
	if err := p.checkOuter(frame[ethernetHeader:]); err != nil {
		c.Errorf("%s: %v\n%s", name, err, show(frame))
	}
	src, dst := addressesOf(p)
	if p.protocol != w.icmp() || src != in.dst.Addr() || dst != in.src.Addr() {
		c.Fatalf("%s: no error from %s to %s:\n%s", name, in.dst, in.src, show(frame))
	}
	quoted, ok := parseQuoted(p.transport[8:])
	if !ok || len(quoted.transport) < 8 {
		c.Fatalf("%s: quotes nothing\n%s", name, show(frame))
	}
	if src, dst := quoted.endpoints(); src != in.src || dst != in.dst {
		c.Errorf("%s: quotes a packet from %s to %s, want from %s to %s", name, src, dst, in.src, in.dst)
	}
}
