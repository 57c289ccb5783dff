// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// passingXDP is a program at XDP that lets all pass.
func (n *node) passingXDP() *ebpf.Program {
	n.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: bpf.ProgramXDP, Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	n.must(err)
	n.Cleanup(func() { p.Close() })
	return p
}

// atXDP makes a manager that has the program at XDP, and notes what it is told of devices.
func (n *node) atXDP(p *ebpf.Program, told *[]bpf.XDPDevice) *Manager {
	return n.manager(func(o *Options) {
		asNode("192.0.2.1")(o)
		o.XDP = genericXDP(p, told)
	})
}

// genericXDP are the options of an agent with a program at XDP. What it would tell the program of goes to told.
func genericXDP(p *ebpf.Program, told *[]bpf.XDPDevice) XDPOptions {
	return XDPOptions{Mode: XDPGeneric, Program: p, Serve: func(d []bpf.XDPDevice) ([]bpf.XDPDevice, error) { *told = d; return nil, nil }}
}

func xdpRows(rows []DeviceRow) []DeviceRow {
	return slices.DeleteFunc(slices.Clone(rows), func(r DeviceRow) bool { return r.Hook != atXDP })
}

// A device that becomes a pod's keeps no program at XDP.
func TestADeviceThatBecomesAPodsIsLeftByTheProgramAtXDP(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		var told []bpf.XDPDevice
		program := n.passingXDP()
		m := n.atXDP(program, &told)
		n.must(m.Sync())
		if len(xdpRows(n.rows())) != 1 {
			t.Fatalf("attached: %+v", n.rows())
		}
		n.must(m.Close())
		m = n.manager(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.Pods, o.XDP = []string{"eth0"}, genericXDP(program, &told)
		})
		n.must(m.Sync())
		if left := n.link("eth0").Attrs().Xdp; left != nil && left.Attached || len(xdpRows(n.rows())) > 0 || len(told) > 0 {
			t.Errorf("left on a pod's device: %+v, %+v; told of %v", left, n.rows(), told)
		}
	})
}

// The program is put in place on network devices, exchanged by another agent in the same link, and taken away by one that has none.
func TestNetworkDevicesGetTheProgramAtXDP(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		var told []bpf.XDPDevice
		first, second := n.passingXDP(), n.passingXDP()
		m := n.atXDP(first, &told)
		n.must(m.Sync())
		card := n.link("eth0").Attrs()
		want := []bpf.XDPDevice{{Ifindex: uint32(card.Index), MAC: card.HardwareAddr, Takes: true, Sends: true}}
		if !reflect.DeepEqual(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
		rows := xdpRows(n.rows())
		if len(rows) != 1 || rows[0].Device != "eth0" || rows[0].Method != GenericXDP || rows[0].Note != "" {
			t.Fatalf("attached: %+v", rows)
		}
		n.must(m.Close())
		m = n.atXDP(second, &told)
		n.must(m.Sync())
		again := xdpRows(n.rows())
		if len(again) != 1 || again[0].Link != rows[0].Link || again[0].ID == rows[0].ID {
			t.Errorf("after a restart: %+v, before %+v", again, rows)
		}
		n.must(m.Close())
		m = n.manager(asNode("192.0.2.1"))
		n.must(m.Sync())
		if left := n.link("eth0").Attrs().Xdp; left != nil && left.Attached || len(xdpRows(n.rows())) > 0 {
			t.Errorf("left by an agent without XDP: %+v, %+v", left, n.rows())
		}
	})
}

// In the driver a veth has the program while its other end takes what is sent at XDP, as the kernel tells of at once. The kernel may say
// nothing (before Linux 6.3): the packets are TC's.
func TestAVethHasTheProgramInItsDriverWhileItsOtherEndTakesPackets(t *testing.T) {
	inNode(t, func(n *node) {
		outside := n.card("eth0", "192.0.2.1/24")
		can, err := readDriver(n.link("eth0").Attrs().Index)
		n.must(err)
		var told atomic.Pointer[[]bpf.XDPDevice]
		m, synced := n.follow(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.XDP = XDPOptions{Mode: XDPNative, Program: n.passingXDP(), Serve: func(d []bpf.XDPDevice) ([]bpf.XDPDevice, error) { told.Store(&d); return nil, nil }}
		})
		await := func(what, note string, method Method) {
			n.Helper()
			for range synced {
				rows, devices := xdpRows(m.Devices()), told.Load()
				serves := method != ""
				if len(rows) == 1 && rows[0].Method == method && strings.Contains(rows[0].Note, note) && devices != nil &&
					len(*devices) == 1 && (*devices)[0].Takes == serves && (*devices)[0].Opens == serves && (*devices)[0].Redirects == serves && (*devices)[0].Sends == serves {
					return
				}
				n.Logf("%s: %+v, told of %+v", what, rows, devices)
			}
		}
		if !can.said {
			await("a kernel that does not say", "the kernel does not say", "")
			return
		}
		await("an end without GRO", "takes nothing that is sent at XDP", "")
		n.enter(outside)
		other, err := link.AttachXDP(link.XDPOptions{Program: n.passingXDP(), Interface: n.link("eth0").Attrs().Index, Flags: link.XDPDriverMode})
		n.enter(n.own)
		n.must(err)
		await("an end with a program", "", NativeXDP)
		n.must(other.Close())
		await("the program has gone", "takes nothing that is sent at XDP", "")
		if left := n.link("eth0").Attrs().Xdp; left != nil && left.Attached {
			t.Errorf("left on the device: %+v", left)
		}
	})
}

// Whether a device sends what came by another one's program is as it is once programs are attached, not as before: an end of a veth does with a
// program at the other end.
func TestWhatADeviceSendsIsAskedOnceProgramsAreAttached(t *testing.T) {
	inNode(t, func(n *node) {
		n.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("b"), PeerName: "a"}))
		first, second := n.link("a"), n.link("b") // as the kernel numbers them, and as they are looked at
		if first.Attrs().Index > second.Attrs().Index {
			first, second = second, first
		}
		for _, l := range []netlink.Link{first, second} {
			n.up(l.Attrs().Name)
		}
		if can, err := readDriver(first.Attrs().Index); err != nil || !can.said {
			t.Skipf("the kernel does not say what drivers can do: %v", err)
		}
		other, err := link.AttachXDP(link.XDPOptions{Program: n.passingXDP(), Interface: first.Attrs().Index, Flags: link.XDPDriverMode})
		n.must(err)
		defer other.Close()
		var told []bpf.XDPDevice
		m := n.manager(func(o *Options) {
			o.Networks = []string{"a", "b"}
			o.XDP = genericXDP(n.passingXDP(), &told)
			o.XDP.Mode = XDPNative
		})
		n.must(m.Sync())
		if len(told) != 2 || told[0].Takes || !told[0].Sends || !told[1].Takes || !told[1].Opens {
			t.Errorf("told of %+v, want one that sends alone, and one that takes: %+v", told, xdpRows(m.Devices()))
		}
	})
}

// Until the programs at TC are an agent's own, that at XDP passes everything: an earlier agent's may take out of the tunnel what they do not know.
func TestTheProgramAtXDPIsSilentUntilThoseAtTCAreAttached(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		var calls []string
		m := n.manager(func(o *Options) {
			asNode("192.0.2.1")(o)
			o.XDP = XDPOptions{Mode: XDPGeneric, Program: n.passingXDP(), Serve: func(d []bpf.XDPDevice) ([]bpf.XDPDevice, error) {
				calls = append(calls, fmt.Sprintf("%d devices, %d programs", len(d), len(n.rows())))
				return nil, nil
			}}
		})
		n.must(m.Sync())
		n.must(m.Sync())
		if want := []string{"0 devices, 0 programs", "1 devices, 3 programs"}; !slices.Equal(calls, want) {
			t.Errorf("told of %q, want %q", calls, want)
		}
	})
}

// Nothing is tried in a driver where it might do harm, or cannot.
func TestWhatKeepsADriverFromTheProgram(t *testing.T) {
	veth, bond, card := &netlink.Veth{}, &netlink.Bond{}, &netlink.Device{}
	for _, c := range []struct {
		mode XDPMode
		link netlink.Link
		can  driver
		want string // "": nothing does
	}{
		{XDPNative, card, driver{}, ""},
		{XDPNative, card, driver{said: true, takes: true}, ""},
		{XDPNative, card, driver{said: true, sends: true}, "its driver has no XDP"},
		{XDPNative, bond, driver{said: true, takes: true, sends: true}, "bond"},
		{XDPNative, veth, driver{}, "the kernel does not say whether the other end"},
		{XDPNative, veth, driver{said: true, takes: true}, "takes nothing"},
		{XDPNative, veth, driver{said: true, takes: true, sends: true}, ""},
		{XDPAuto, card, driver{}, "the kernel does not say"},
		{XDPAuto, card, driver{said: true, takes: true}, ""},
		{XDPAuto, card, driver{said: true}, "its driver has no XDP"},
		{XDPAuto, veth, driver{said: true, takes: true, sends: true}, "partial checksum"},
	} {
		why := c.can.unfit(c.mode, c.link)
		if (why == nil) != (c.want == "") || why != nil && !strings.Contains(why.Error(), c.want) {
			t.Errorf("%s of a %s, %+v: %v, want %q", c.mode, c.link.Type(), c.can, why, c.want)
		}
	}
}

// Where another program is at XDP the packets are TC's, which serves; and the row says why.
func TestAnotherProgramAtXDPIsLeftAlone(t *testing.T) {
	inNode(t, func(n *node) {
		n.card("eth0", "192.0.2.1/24")
		other, err := link.AttachXDP(link.XDPOptions{Program: n.passingXDP(), Interface: n.link("eth0").Attrs().Index, Flags: link.XDPGenericMode})
		n.must(err)
		defer other.Close()
		var told []bpf.XDPDevice
		m := n.atXDP(n.passingXDP(), &told)
		n.must(m.Sync())
		rows := xdpRows(m.Devices())
		if len(rows) != 1 || rows[0].Method != "" || rows[0].Error != "" || !strings.Contains(rows[0].Note, "another XDP program") {
			t.Errorf("rows: %+v", rows)
		}
		if len(told) != 1 || told[0].Takes {
			t.Errorf("told of %v, want one device that takes nothing", told)
		}
		n.must(other.Close())
		n.must(m.Sync())
		if rows := xdpRows(m.Devices()); len(rows) != 1 || rows[0].Method != GenericXDP || !told[0].Takes {
			t.Errorf("when the other one has gone: %+v, %v", rows, told)
		}
	})
}

// An agent of another layout takes the link over before its programs at TC serve clients off the node: the former program would go on
// deciding in front of them, by tables that nobody writes any more.
func TestAFormerProgramAtXDPEndsBeforeTheNewOnesServe(t *testing.T) {
	for _, mode := range []XDPMode{XDPGeneric, XDPOff} {
		t.Run(string(mode), func(t *testing.T) {
			inNode(t, func(n *node) {
				n.card("eth0", "192.0.2.1/24")
				var told []bpf.XDPDevice
				first, second := n.passingXDP(), n.passingXDP()
				m := n.atXDP(first, &told)
				n.must(m.Sync())
				n.must(m.Close())
				former := n.linkDir
				n.linkDir = former + "-next"
				n.must(os.Mkdir(n.linkDir, 0o700))
				n.programs, n.counter = countingPrograms(t, nil) // those of the other layout are others
				told = nil
				var seen []string
				m = n.manager(func(o *Options) {
					asNode("192.0.2.1")(o)
					o.Former = func() []string { return []string{former} }
					o.Carry = func() { seen = append(seen, n.programAtXDP("eth0", first, second)) }
					if mode.On() {
						o.XDP = genericXDP(second, &told)
					}
				})
				n.must(m.Sync())
				want := map[XDPMode][]string{XDPGeneric: {"first", "second"}, XDPOff: {"first", "none"}}[mode]
				if !slices.Equal(seen, want) {
					t.Errorf("at XDP when connections are carried, before and after the programs at TC: %v, want %v", seen, want)
				}
				if rows := xdpRows(n.rows()); (len(rows) == 1) != (mode == XDPGeneric) || (len(told) == 1) != (mode == XDPGeneric) {
					t.Errorf("in the end: %+v, told of %v", rows, told)
				}
			})
		})
	}
}

// programAtXDP names the program that a device has.
func (n *node) programAtXDP(device string, first, second *ebpf.Program) string {
	n.Helper()
	at := n.link(device).Attrs().Xdp
	if at == nil || !at.Attached {
		return "none"
	}
	for name, p := range map[string]*ebpf.Program{"first": first, "second": second} {
		info, err := p.Info()
		n.must(err)
		if id, _ := info.ID(); uint32(id) == at.ProgId {
			return name
		}
	}
	return "another"
}
