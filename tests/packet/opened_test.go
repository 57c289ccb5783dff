// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// What the program at XDP takes out of the tunnel goes on as what from_net takes out itself, whatever it is; and what that refuses it refuses.
func TestTheTunnelAtXDP(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"addresses":  TestAClientOffTheNodeKeepsItsAddressThroughTheTunnel,
		"answers":    TestTheBackendsNodeAnswersTheClientItself,
		"errors":     TestErrorsPassTheTunnelBothWays,
		"headers":    TestUnusualHeadersPassTheTunnel,
		"congestion": TestCongestionInTheTunnelIsTold,
		"returned":   TestABackendThatItsNodeDoesNotKnowIsReachedBySNAT,
		"hostile":    TestTheTunnelTakesWhatNodesSendAndNothingElse,
		"cookies":    TestNobodyIsANodeWithoutTheCookie,
	} {
		t.Run(name, test)
	}
}

// cable is a veth pair: what one end sends comes to from_net at the other, which is the nodes' device, past whatever is at XDP there.
type cable struct {
	*rig
	device netlink.Link
	far    int // packet socket of the other end
}

// onCable builds the pair in a network namespace of its own, for n2 of a nodePair.
func onCable(t *testing.T, test func(cable)) {
	t.Helper()
	onCableOf(t, 1500, test)
}

// onCableOf builds one with this MTU.
func onCableOf(t *testing.T, mtu int, test func(cable)) {
	t.Helper()
	inNewNamespace(t, func() {
		for _, which := range []string{"all", "default"} {
			check(t, os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0))
		}
		c := cable{rig: newRig(t, only(bpf.Options{Knobs: map[string]any{"tunnel_there": uint8(1)}, XDPOpens: true, XDPFrags: true}, bpf.NearlbProgFromNet, bpf.NearlbProgFromNetFast,
			bpf.NearlbProgFromNetXdp, bpf.NearlbProgXdpTunnelIn, bpf.NearlbProgTunnelIn, bpf.NearlbProgTunnelOpened, bpf.NearlbProgTunnelForward))}
		attributes := netlink.NewLinkAttrs()
		attributes.Name, attributes.MTU = "near", mtu
		check(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "far"}))
		c.device = upDevice(t, "near")
		far := upDevice(t, "far")
		awaitCarrier(t, "near", "far")
		c.far = packetSocket(t, far.Attrs().Index)
		attachIngress(t, c.device, c.objects.FromNet)
		four, six := world{}, world{v6: true}
		check(t, c.tables.Configure(maps.Config{ServiceCIDRs: cidrs(), Loopback4: loopback4(), Loopback6: loopback6(), Tunnel: keyed(newCookie, newCookie),
			Node4: four.node2(), Node6: six.node2(), NodePort4: four.node2(), NodePort6: six.node2()}))
		c.serves(true)
		test(c)
	})
}

// serves says whether the program at XDP takes packets of the device out of the tunnel.
func (c cable) serves(opens bool) {
	c.Helper()
	c.serveXDPBy(bpf.XDPDevice{Ifindex: uint32(c.device.Attrs().Index), MAC: c.device.Attrs().HardwareAddr, Takes: true, Opens: opens})
}

// putAtXDP has the device's driver run a program until the end of test.
func (c cable) putAtXDP(program *ebpf.Program, test func()) {
	c.Helper()
	at, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: c.device.Attrs().Index, Flags: link.XDPDriverMode})
	check(c, err)
	test()
	check(c, at.Close())
}

// addressed is a frame to the device.
func (c cable) addressed(frame []byte) []byte {
	return slices.Concat(c.device.Attrs().HardwareAddr, frame[6:])
}

// becomes sends a frame and wants from_net's verdict on it.
func (c cable) becomes(what string, frame []byte, verdict string) {
	c.Helper()
	before := c.counters()
	_, err := unix.Write(c.far, append(make([]byte, binary.Size(offload{})), c.addressed(frame)...))
	check(c, err)
	for deadline := time.Now().Add(patience); ; runtime.Gosched() {
		now := c.counters()
		for which, value := range now {
			if which.hook != fromNet || value == before[which] {
				continue
			}
			if which.verdict != verdict || value.Bytes != before[which].Bytes+uint64(len(frame)) {
				c.Errorf("%s: %s, %d bytes; want %s, %d", what, which.verdict, value.Bytes-before[which].Bytes, verdict, len(frame))
			}
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("%s: nothing was counted: %v", what, now)
		}
	}
}

// sees wants a packet socket of the device to see a frame: what XDP passed on.
func (c cable) sees(socket int, want []byte) {
	c.Helper()
	b := make([]byte, 1<<14)
	for {
		n, from, err := unix.Recvfrom(socket, b, 0)
		if err == unix.EINTR {
			continue
		}
		check(c, err)
		if l, ok := from.(*unix.SockaddrLinklayer); !ok || l.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if got := b[binary.Size(offload{}):n]; !bytes.Equal(got, c.addressed(want)) {
			c.Errorf("the kernel sees\n%s\nwant\n%s", show(got), show(want))
		}
		return
	}
}

// strays is a node's datagram with a packet for nobody, and that packet.
func (w world) strays() (datagram, []byte) {
	frame := w.packet(at(w.outside(1), 41000), at(w.outside(99), 80)).bytes()
	d := w.forward(frame, netip.AddrPort{})
	d.from = at(w.node1(), 0x9000)
	return d, frame
}

// The program at XDP takes a node's packets out of the tunnel in the driver, and from_net goes on with them by the metadata, also where somebody
// else looks at them (tcpdump). What has another cookie, or none, it leaves as it is.
func TestPacketsTakenOutInTheDriverReachTheProgramAtTC(t *testing.T) {
	onCable(t, func(cable cable) {
		for _, w := range worlds(lb.TCP) {
			w.cookie = newCookie
			d, inner := w.strays()
			seen := packetSocket(t, cable.device.Attrs().Index)
			cable.putAtXDP(cable.objects.FromNetXdp, func() {
				cable.becomes("a node's", d.frame(), "drop_tunnel_stray")
				cable.sees(seen, inner)
				for what, cookie := range map[string]uint64{"another cookie": newCookie + 1, "no cookie": 0} {
					d.cookie = cookie
					cable.becomes(what, d.frame(), "drop_tunnel_cookie")
					cable.sees(seen, d.frame())
				}
				d.cookie = newCookie
				cable.serves(false)
				cable.becomes("where XDP takes none out", d.frame(), "drop_tunnel_stray")
				cable.sees(seen, d.frame())
				cable.serves(true)
			})
		}
	})
}

// Drivers refuse a program that knows no frames of several pieces where the MTU is larger than a page. It serves the packets that fit into one; those
// that do not are TC's, as they came.
func TestWithALargeMTUTheDriverHasTheProgramForWhatFitsIntoAPage(t *testing.T) {
	onCableOf(t, 9000, func(cable cable) {
		for _, w := range worlds(lb.TCP) {
			w.cookie = newCookie
			d, inner := w.strays()
			seen := packetSocket(t, cable.device.Attrs().Index)
			cable.putAtXDP(cable.objects.FromNetXdp, func() {
				cable.becomes("what fits", d.frame(), "drop_tunnel_stray")
				cable.sees(seen, inner)
				d.inner = w.packet(at(w.outside(1), 41000), at(w.outside(99), 80)).with("A", strings.Repeat("x", 8000)).bytes()[14:]
				cable.becomes("what does not", d.frame(), "drop_tunnel_stray")
				cable.sees(seen, d.frame())
			})
		}
	})
}

// Metadata of a program that is not ours are not taken for what ours says.
func TestMetadataOfAnotherProgramAreNoTunnels(t *testing.T) {
	onCable(t, func(cable cable) {
		var s bpf.NearlbSettings
		check(t, cable.objects.Config.Lookup(uint32(0), &s))
		ours := bpf.NearlbOpened{Salt: openedSalt(s.Seed), Node: 1, Kind: kindForward}
		for _, w := range worlds(lb.TCP) {
			_, inner := w.strays()
			for _, bit := range []int{0, 31, 63} {
				forged := ours
				forged.Salt ^= 1 << bit
				cable.putAtXDP(writesMetadata(t, forged), func() { cable.becomes("another salt", inner, "pass_not_service") })
			}
			cable.putAtXDP(writesMetadata(t, ours), func() {
				cable.becomes("ours", inner, "drop_tunnel_stray")
				cable.serves(false)
				cable.becomes("ours, on its way as an agent starts", inner, "drop_tunnel_stray")
				cable.serves(true)
			})
		}
	})
}

// openedSalt is opened_salt of bpf/lib/opened.h.
func openedSalt(seed uint64) uint64 {
	x := (seed ^ 0xff51afd7ed558ccd) * 0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// writesMetadata is a program at XDP that passes everything, with this in front.
func writesMetadata(t *testing.T, said bpf.NearlbOpened) *ebpf.Program {
	t.Helper()
	var b bytes.Buffer
	check(t, binary.Write(&b, binary.LittleEndian, said))
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R2, -int32(b.Len())),
		asm.FnXdpAdjustMeta.Call(),
		asm.LoadMem(asm.R2, asm.R6, 8, asm.Word), // data_meta
		asm.LoadMem(asm.R3, asm.R6, 0, asm.Word), // data
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(b.Len())),
		asm.JGT.Reg(asm.R4, asm.R3, "pass"),
	}
	for i, word := range slices.Collect(slices.Chunk(b.Bytes(), 8)) {
		code = append(code, asm.LoadImm(asm.R5, int64(binary.LittleEndian.Uint64(word)), asm.DWord), asm.StoreMem(asm.R2, int16(8*i), asm.R5, asm.DWord))
	}
	code = append(code, asm.Mov.Imm(asm.R0, int32(xdpPass)).WithSymbol("pass"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "writes_metadata", Type: ebpf.XDP, License: "GPL", Instructions: code})
	check(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}
