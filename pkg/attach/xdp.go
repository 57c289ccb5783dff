// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// XDPMode says which network devices get the program at XDP.
type XDPMode string

// The modes. The zero value is XDPOff.
const (
	XDPOff     XDPMode = "off"
	XDPAuto    XDPMode = "auto"    // in the driver, where the kernel says that it can, but for veths
	XDPNative  XDPMode = "native"  // in the driver
	XDPGeneric XDPMode = "generic" // in the kernel's stack, before TC: any Ethernet device
)

// XDPModes are all of them.
func XDPModes() []XDPMode { return []XDPMode{XDPOff, XDPAuto, XDPNative, XDPGeneric} }

// On tells whether any device gets the program.
func (m XDPMode) On() bool { return m != XDPOff && m != "" }

// InDriver tells whether the program is the driver's.
func (m XDPMode) InDriver() bool { return m == XDPAuto || m == XDPNative }

// Opens tells whether the program takes packets out of the tunnel: in a driver that somebody named for it, as the checksums in such packets are
// then taken for good where the device says so of what was around them. In the kernel's stack it may not: that cuts later what it takes for
// tunnelled.
func (m XDPMode) Opens() bool { return m == XDPNative }

// attached is the kernel's word for where the program is (XDP_ATTACHED_*).
func (m XDPMode) attached() uint8 {
	if m.InDriver() {
		return nl.XDP_ATTACHED_DRV
	}
	return nl.XDP_ATTACHED_SKB
}

// The methods of the program at XDP.
const (
	GenericXDP Method = "xdp-generic"
	NativeXDP  Method = "xdp-native"
)

// methodAtXDP is that of a program which the kernel says is there; "": there is none of ours, or it is the device's own hardware that runs it.
func methodAtXDP(attached uint8) Method {
	switch attached {
	case nl.XDP_ATTACHED_DRV:
		return NativeXDP
	case nl.XDP_ATTACHED_SKB:
		return GenericXDP
	}
	return ""
}

// atXDP is the program's hook in rows, and the end of the name of its link's pin.
const atXDP = "xdp"

// XDPOptions are those of the program at XDP.
type XDPOptions struct {
	Mode    XDPMode
	Program *ebpf.Program // nil: no device gets it
	// Serve tells the program of the devices (bpf.NearlbMaps.SetXDPDevices), when they differ from the last time.
	Serve func([]bpf.XDPDevice) (without []bpf.XDPDevice, err error)
}

func (o XDPOptions) wanted() bool {
	return o.Program != nil && o.Mode.On()
}

// syncXDP brings the program at XDP to every network device that can have it. What fails is no error: packets are TC's then, and the row
// says why.
func (m *Manager) syncXDP(h *netlink.Handle, doors []door) []DeviceRow {
	if !m.options.XDP.wanted() {
		return nil
	}
	var rows []DeviceRow
	var devices []bpf.XDPDevice
	for _, d := range doors {
		if d.kind != kindNetwork {
			continue
		}
		row := DeviceRow{Device: d.name, Ifindex: d.ifindex, Kind: kindNetwork, Program: bpf.ProgramXDP, Hook: atXDP, Others: []uint32{}}
		told := bpf.XDPDevice{Ifindex: uint32(d.ifindex)}
		if err := m.ensureXDP(h, d.device, &row, &told); err == nil {
			told.Opens = m.options.XDP.Mode.Opens() && !m.fails(d.ifindex)
		} else {
			row.Note = fmt.Sprintf("left to TC: %v", err)
			if m.leftToTC[d.ifindex] != row.Note {
				m.log.Info("left packets to TC", "device", d.name, "program", bpf.ProgramXDP, "problem", err)
			}
		}
		if len(told.MAC) > 0 {
			devices = append(devices, told)
		}
		rows = append(rows, row)
	}
	m.readSenders(devices)
	m.leftToTC = map[int]string{}
	for _, row := range rows {
		m.leftToTC[row.Ifindex] = row.Note
	}
	m.serveXDP(devices, rows)
	return rows
}

// readSenders asks again which of the devices send what came by others: with a program its driver may do so, and without one not, or that of
// its other end.
func (m *Manager) readSenders(devices []bpf.XDPDevice) {
	if !m.options.XDP.Mode.InDriver() {
		return
	}
	for i := range devices {
		can, err := readDriver(int(devices[i].Ifindex))
		devices[i].Sends = err == nil && can.sends
	}
}

// fails tells whether a program at TC is not on a device as it should be.
func (m *Manager) fails(ifindex int) bool {
	for k := range m.failing {
		if k.ifindex == ifindex {
			return true
		}
	}
	return false
}

// silenceXDP has the program at XDP pass everything until it is told of devices again: an earlier agent's may hand on what the programs at TC
// that come do not know.
func (m *Manager) silenceXDP() error {
	if m.started || m.options.XDP.Serve == nil {
		return nil
	}
	_, err := m.options.XDP.Serve(nil)
	return err
}

// takeOverXDP gives the links of another generation our program, which passes everything until it is told of devices: the former one would
// go on deciding, in front of our programs at TC, by tables that nobody writes any more. A link that does not take it is removed.
func (m *Manager) takeOverXDP(doors []door) {
	for _, d := range doors {
		k := key{d.ifindex, atXDP}
		if d.kind != kindNetwork {
			continue
		}
		a, err := m.current(k)
		if err != nil || a == nil {
			continue // syncXDP tries again, and says what is wrong
		}
		if !m.options.XDP.wanted() || a.link.Update(m.options.XDP.Program) != nil {
			_ = m.dropLink(k)
		}
	}
}

// serveXDP tells the program of devices. Those that it has no place for are in rows.
func (m *Manager) serveXDP(devices []bpf.XDPDevice, rows []DeviceRow) {
	if m.xdpTold && reflect.DeepEqual(m.servedXDP, devices) || m.options.XDP.Serve == nil {
		return
	}
	without, err := m.options.XDP.Serve(devices)
	m.servedXDP, m.xdpTold = devices, err == nil && len(without) == 0
	for i := range rows {
		lacks := slices.ContainsFunc(without, func(d bpf.XDPDevice) bool { return int(d.Ifindex) == rows[i].Ifindex })
		if err != nil {
			rows[i].Note = fmt.Sprintf("left to TC: %v", err)
		} else if lacks {
			rows[i].Note = "left to TC: another device has its place in the table of devices"
		}
	}
}

// ensureXDP attaches the program to a device, and fills in what is told of it: whether it takes and sends.
func (m *Manager) ensureXDP(h *netlink.Handle, d device, row *DeviceRow, told *bpf.XDPDevice) error {
	k := key{d.ifindex, atXDP}
	l, err := h.LinkByIndex(d.ifindex)
	if err != nil {
		return fmt.Errorf("read device: %w", err)
	}
	can := driver{said: true, takes: true, sends: true} // the kernel's stack
	if m.options.XDP.Mode.InDriver() {
		if can, err = readDriver(d.ifindex); err != nil {
			return errors.Join(err, m.dropLink(k))
		}
	}
	if d.header == ethernet {
		told.MAC, told.Sends = l.Attrs().HardwareAddr, can.sends
	}
	why := unfitForXDP(d, l)
	if why == nil && m.options.XDP.Mode.InDriver() {
		why = can.unfit(m.options.XDP.Mode, l)
	}
	if why != nil {
		return errors.Join(why, m.dropLink(k))
	}
	a, err := m.currentXDP(k, l.Attrs())
	if err != nil {
		return err
	}
	info, err := m.options.XDP.Program.Info()
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	if a == nil {
		a, err = m.attachXDP(d, k, l.Attrs())
	} else {
		err = m.updateXDP(a, d, k, info)
	}
	if err != nil { // a link that is there may have a former program, which must not go on
		if left := m.dropLink(k); left != nil {
			row.Error = left.Error()
		}
		return err
	}
	told.Takes, told.Redirects = true, m.options.XDP.Mode.InDriver() && isVeth(l)
	id, _ := info.ID()
	a.runs = id
	row.Method, row.ID, row.Tag, row.Link = methodAtXDP(m.options.XDP.Mode.attached()), uint32(id), info.Tag, uint32(a.id)
	return nil
}

// unfitForXDP is why the device does not get the program.
func unfitForXDP(d device, l netlink.Link) error {
	switch {
	case d.header != ethernet:
		return errors.New("it has no Ethernet header")
	case len(l.Attrs().HardwareAddr) != 6:
		return errors.New("it has no Ethernet address")
	case d.vlans:
		return errors.New("it has VLAN devices, whose frames may come without their tag at XDP")
	}
	return nil
}

// currentXDP is our link on the device; nil: there is none that could stay.
func (m *Manager) currentXDP(k key, l *netlink.LinkAttrs) (*attachment, error) {
	a, err := m.current(k)
	if err != nil || a == nil {
		return nil, err
	}
	info, err := a.link.Info()
	if err != nil {
		return nil, fmt.Errorf("read link: %w", err)
	}
	if on := info.XDP(); on != nil && int(on.Ifindex) == k.ifindex && l.Xdp != nil && uint8(l.Xdp.AttachMode) == m.options.XDP.Mode.attached() {
		return a, nil
	}
	return nil, m.dropLink(k) // of another device that had the index, or of another mode
}

func (m *Manager) attachXDP(d device, k key, l *netlink.LinkAttrs) (*attachment, error) {
	where := link.XDPAttachFlags(link.XDPGenericMode)
	if m.options.XDP.Mode.InDriver() {
		where = link.XDPDriverMode
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: m.options.XDP.Program, Interface: d.ifindex, Flags: where})
	if err != nil {
		return nil, explainXDP(err, l)
	}
	info, err := attached.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read link: %w", err), attached.Close())
	}
	a := &attachment{link: attached, id: info.ID}
	if err := m.pin(a, k); err != nil {
		return nil, errors.Join(err, attached.Close())
	}
	m.attached[k] = a
	m.log.Info("attached program", "device", d.name, "program", bpf.ProgramXDP, "method", methodAtXDP(m.options.XDP.Mode.attached()))
	return a, nil
}

// explainXDP says what the kernel's answer means.
func explainXDP(err error, l *netlink.LinkAttrs) error {
	if l.Xdp != nil && l.Xdp.ProgId != 0 {
		return fmt.Errorf("another XDP program, %d, is attached: %w", l.Xdp.ProgId, err)
	}
	return fmt.Errorf("the kernel refuses XDP: %w", err)
}

// updateXDP exchanges the program in place, and pins the link again if somebody removed its file.
func (m *Manager) updateXDP(a *attachment, d device, k key, want *ebpf.ProgramInfo) error {
	now, err := a.link.Info()
	if err != nil {
		return fmt.Errorf("read link: %w", err)
	}
	if id, _ := want.ID(); now.Program != id {
		if err := a.link.Update(m.options.XDP.Program); err != nil {
			return fmt.Errorf("update link: %w", err)
		}
		m.log.Info("replaced program", "device", d.name, "program", bpf.ProgramXDP, "method", methodAtXDP(m.options.XDP.Mode.attached()))
	}
	return m.repin(a, k)
}

// repin pins a link again if somebody removed its file.
func (m *Manager) repin(a *attachment, k key) error {
	if _, err := os.Lstat(a.pin); a.pin == "" || !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := a.link.Unpin(); err != nil { // it does not know that its file is gone
		return fmt.Errorf("forget pin: %w", err)
	}
	return m.pin(a, k)
}

// readXDP is the row of the program at XDP on a device, by the link that is pinned; false: there is none.
func readXDP(l *netlink.LinkAttrs, path string) (DeviceRow, bool, error) {
	row := DeviceRow{Device: l.Name, Ifindex: l.Index, Kind: kindNetwork, Program: bpf.ProgramXDP, Hook: atXDP, Others: []uint32{}}
	a, err := openPinned(path)
	if err != nil || a == nil {
		return row, false, err
	}
	defer a.close()
	info, err := a.link.Info()
	if err != nil {
		return row, false, fmt.Errorf("read link: %w", err)
	}
	on := info.XDP()
	if on == nil || int(on.Ifindex) != l.Index || l.Xdp == nil {
		return row, false, nil
	}
	if row.Method = methodAtXDP(uint8(l.Xdp.AttachMode)); row.Method == "" {
		return row, false, nil
	}
	row.ID, row.Link = uint32(info.Program), uint32(info.ID)
	return row, true, nil
}
