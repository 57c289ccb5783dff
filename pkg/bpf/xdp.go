// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ProgramXDP is the program of network devices at XDP; it is loaded for Options.XDP alone.
const ProgramXDP = "from_net_xdp"

// programsXDP are those at XDP: that one, and what it calls.
var programsXDP = []string{ProgramXDP, NearlbProgXdpTunnelOut, NearlbProgXdpTunnelIn, NearlbProgXdpCreate}

// Each processor remembers ways of flows for it, which are spread over the processors: a power of two, 48 bytes each.
const (
	xdpWaysAll   = 1 << 18 // of all processors
	xdpWaysLeast = 1 << 14 // of one
	xdpWaysMost  = 1 << 17
)

// xdpWays is how many ways each processor remembers.
func xdpWays() (uint32, error) {
	processors, err := ebpf.PossibleCPU()
	if err != nil {
		return 0, fmt.Errorf("count processors: %w", err)
	}
	ways := uint32(xdpWaysMost)
	for ways > xdpWaysLeast && int(ways)*processors > xdpWaysAll {
		ways /= 2
	}
	return ways, nil
}

const (
	knobXDPWayMask = "xdp_way_mask"
	knobXDPOpens   = "xdp_opens" // it takes packets out of the tunnel, for from_net
)

// chooseXDP takes the programs at XDP out of what is to be loaded, where nobody asks for them, or gives them room.
func chooseXDP(spec *ebpf.CollectionSpec, o Options) error {
	if !o.XDP {
		leaveOut(spec, programsXDP)
		return nil
	}
	if o.XDPFrags {
		takeFrags(spec)
	}
	ways := o.XDPWays
	if ways == 0 {
		var err error
		if ways, err = xdpWays(); err != nil {
			return err
		}
	}
	spec.Maps[NearlbMapXdpWays].MaxEntries = ways
	return errors.Join(setKnob(spec, knobXDPWayMask, ways-1), setKnob(spec, knobXDPOpens, number(o.XDPOpens)))
}

// takeFrags has drivers give frames of several pieces to the programs at XDP: without that they refuse these at a large MTU. Such a frame passes, as
// not all of it is where programs look. A program before the stack is not to have them: Linux 6.18 gives it copies that do not reach their receivers.
func takeFrags(spec *ebpf.CollectionSpec) {
	for _, name := range programsXDP {
		if p := spec.Programs[name]; p != nil {
			p.Flags |= unix.BPF_F_XDP_HAS_FRAGS
		}
	}
}

// XDPDevice is a network device as the program at XDP is told of it.
type XDPDevice struct {
	Ifindex   uint32
	MAC       net.HardwareAddr // to which frames for its host go: six bytes
	Takes     bool             // the program serves it
	Opens     bool             // the program takes packets out of the tunnel, for from_net at TC of the same device; in the driver alone
	Redirects bool             // frames that came by it and leave by it are redirected to it (XDP_REDIRECT), not sent back (XDP_TX)
	Sends     bool             // it sends frames that the program got from another device
}

// takes is enum xdp_takes of bpf/lib/types.h.
func (d XDPDevice) takes() uint8 {
	if !d.Takes {
		return 0
	}
	return uint8(NearlbXdpTakesXDP_TAKES) | number(d.Redirects)*uint8(NearlbXdpTakesXDP_TAKES_REDIRECT) | number(d.Opens)*uint8(NearlbXdpTakesXDP_OPENS)
}

// SetXDPDevices tells the program at XDP of these devices and of no others; what it remembers of packets' ways is forgotten. It leaves out one whose place another has, and returns those:
// packets by them are TC's.
func (m *NearlbMaps) SetXDPDevices(devices []XDPDevice) (without []XDPDevice, err error) {
	want := make([]NearlbXdpDevice, m.XdpDevices.MaxEntries())
	for _, d := range devices {
		slot := &want[d.Ifindex%uint32(len(want))]
		if slot.Ifindex != 0 || len(d.MAC) != len(slot.Mac) {
			without = append(without, d)
			continue
		}
		*slot = NearlbXdpDevice{Ifindex: d.Ifindex, Mac: [6]uint8(d.MAC), Takes: d.takes(), Sends: number(d.Sends)}
	}
	for i := range want {
		var now NearlbXdpDevice
		err := m.XdpDevices.Lookup(uint32(i), &now)
		want[i].Epoch = now.Epoch
		if want[i].Ifindex != 0 {
			want[i].Epoch++
		}
		if err == nil && now != want[i] {
			err = m.XdpDevices.Put(uint32(i), &want[i])
		}
		if err != nil {
			return without, fmt.Errorf("write table %s: %w", NearlbMapXdpDevices, err)
		}
	}
	return without, nil
}

func number(yes bool) uint8 {
	if yes {
		return 1
	}
	return 0
}

// renumbered are tables that begin anew where their size differs: what is in them is numbered otherwise then, or is soon known again.
func renumbered(name string) bool { return name == NearlbMapVerdicts || name == NearlbMapXdpWays }
