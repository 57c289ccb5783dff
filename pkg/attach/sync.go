// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/vishvananda/netlink"
)

// Sync brings every pod device and network device to what it should have, once: attaches, puts new programs in the place of
// old ones, and removes what is not wanted any more. A device that fails does not keep the others; the error joins all
// failures.
func (m *Manager) Sync() error { return m.sync(change{all: true}) }

// sync is Sync where only what changed is to be read and looked at.
func (m *Manager) sync(c change) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.options.Programs.check(); err != nil {
		return err
	}
	h, err := openNetlink()
	if err != nil {
		return err
	}
	defer h.Close()
	devices, doors, err := m.look(h, &c)
	if err != nil {
		return err
	}
	if err := m.silenceXDP(); err != nil {
		return err
	}
	m.succeed(h, doors)
	err = errors.Join(m.removeOthers(h, devices, doors), m.ensureAll(h, doors, c))
	if !m.started {
		m.started = true
		close(m.tried)
	}
	if err == nil && m.options.Synced != nil {
		m.options.Synced()
	}
	return err
}

// Tried is closed when the first Sync has been through all devices, whether or not each of them took its programs.
func (m *Manager) Tried() <-chan struct{} { return m.tried }

// Look reads devices and addresses, as Sync does, and tells Options.Network. It attaches nothing.
func (m *Manager) Look() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := openNetlink()
	if err != nil {
		return err
	}
	defer h.Close()
	_, _, err = m.look(h, &change{all: true})
	return err
}

// door is a device that gets programs.
type door struct {
	device
	kind string
}

// look lists the devices and those that get programs, after it has read what changed. Who follows the network knows of an address before its
// packets come.
func (m *Manager) look(h *netlink.Handle, c *change) ([]device, []door, error) {
	var err error
	if c.all {
		err = m.view.read(h)
	} else {
		err = m.view.follow(h, c)
	}
	if err != nil {
		return nil, nil, err
	}
	devices := m.view.devices()
	var doors []door
	s := m.selection()
	pods := s.pods(devices)
	for _, d := range pods {
		doors = append(doors, door{d, kindPod})
	}
	networks := s.network(devices)
	told := networkOf(devices, networks, s.outside(devices))
	if m.options.Peers {
		told.Peers, told.Others = peersOf(pods)
	}
	m.tellNetwork(told)
	for _, d := range networks {
		if m.options.Programs.FromNet != nil {
			doors = append(doors, door{d, kindNetwork})
		}
	}
	return devices, doors, nil
}

func (m *Manager) selection() selection {
	s := selection{patterns: m.options.Pods, networks: m.options.Networks, kept: map[int]bool{}, left: m.leftBehind()}
	if m.options.NodeAddresses != nil {
		s.node = m.options.NodeAddresses()
	}
	last := map[int]string{}
	for _, row := range m.Devices() {
		last[row.Ifindex] = row.Kind
	}
	if !m.started {
		last = s.left
	}
	for ifindex, kind := range last {
		s.kept[ifindex] = kind == kindNetwork
	}
	return s
}

// leftBehind are the kinds of the devices that an earlier agent left with programs, by ifindex, as the first look found them.
func (m *Manager) leftBehind() map[int]string {
	if m.left != nil {
		return m.left
	}
	m.left = map[int]string{}
	for _, dir := range append(m.former(), m.options.LinkDir) {
		rows, err := listAttached(newProgramReader(dir))
		if err != nil {
			m.log.Warn("read what an earlier agent attached", "error", err)
		}
		for _, row := range rows {
			m.left[row.Ifindex] = row.Kind
		}
	}
	return m.left
}

// hooks are the programs of a device.
func (m *Manager) hooks(d door) ([]hook, error) {
	p := m.options.Programs
	switch {
	case d.kind == kindPod:
		return hooksOf(kindPod, p.FromPod, p.ToPod), nil
	case d.layer3() && p.Layer3 != nil:
		from, to, err := p.Layer3()
		return hooksOf(kindNetwork, from, to), err
	case d.header == ethernet:
		return hooksOf(kindNetwork, p.FromNet, p.ToNet), nil
	}
	return hooksOf(kindNetwork, nil, nil), fmt.Errorf("packets with a link header of kind %q cannot be read", d.header)
}

// ensureAll attaches to every device that changed, or is another kind of door than it was, and notes what came of it. Of the others the rows
// stay.
func (m *Manager) ensureAll(h *netlink.Handle, doors []door, c change) error {
	var errs []error
	var rows []DeviceRow
	failing := map[key]string{}
	known := m.rowsByDevice()
	ensured := map[int]door{}
	for _, d := range doors {
		before, looked := m.doors[d.ifindex]
		if looked && !c.all && !c.devices[d.ifindex] && reflect.DeepEqual(before, d) {
			rows = append(rows, known[d.ifindex]...)
		} else {
			now, err := m.ensureDoor(h, d, failing)
			rows = append(rows, now...)
			errs = append(errs, err)
		}
		ensured[d.ifindex] = d
	}
	m.failing, m.doors = failing, ensured
	m.setRows(append(rows, m.syncXDP(h, doors)...))
	return errors.Join(errs...)
}

// ensureDoor attaches to a device. What fails it adds to failing.
func (m *Manager) ensureDoor(h *netlink.Handle, d door, failing map[key]string) (rows []DeviceRow, failed error) {
	hooks, unready := m.hooks(d)
	for i, hook := range hooks {
		row, err := hook.row(d.name, d.ifindex), unready
		if err == nil {
			row, err = m.ensure(h, d.device, hook)
		}
		if err != nil && vanished(h, d.device) {
			return rows, nil // it went while we looked
		}
		if err == nil {
			rows = append(rows, row)
			continue
		}
		err = fmt.Errorf("attach %s to %s: %w", hook.program, d.name, err)
		row.Error = err.Error()
		failing[hook.key(d.ifindex)] = row.Error
		m.sayFailure(d.device, hook, err)
		return append(append(rows, row), waiting(d.device, hooks[i+1:], hook)...), err
	}
	return rows, nil
}

// rowsByDevice are those of the last look, by ifindex, without XDP's.
func (m *Manager) rowsByDevice() map[int][]DeviceRow {
	known := map[int][]DeviceRow{}
	for _, row := range m.Devices() {
		if row.Hook != atXDP {
			known[row.Ifindex] = append(known[row.Ifindex], row)
		}
	}
	return known
}

// waiting are the rows of the places after one that failed: requests translated where replies are not would be worse than
// neither.
func waiting(d device, later []hook, failed hook) []DeviceRow {
	var rows []DeviceRow
	for _, hook := range later {
		row := hook.row(d.name, d.ifindex)
		row.Error = fmt.Sprintf("attach %s to %s: left as it is until %s is attached", hook.program, d.name, failed.program)
		rows = append(rows, row)
	}
	return rows
}

// sayFailure logs a failure when it is new or another one than before.
func (m *Manager) sayFailure(d device, hook hook, err error) {
	if m.failing[hook.key(d.ifindex)] != err.Error() {
		m.log.Error("attach program", "device", d.name, "program", hook.program, "error", err)
	}
}

func vanished(h *netlink.Handle, d device) bool {
	_, err := h.LinkByIndex(d.ifindex)
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}

func (m *Manager) setRows(rows []DeviceRow) {
	sortRows(rows)
	m.rowsMu.Lock()
	defer m.rowsMu.Unlock()
	m.rows = rows
}

// ensure brings one place of one device up to date.
func (m *Manager) ensure(h *netlink.Handle, d device, hook hook) (DeviceRow, error) {
	row := hook.row(d.name, d.ifindex)
	want, err := hook.loaded.Info()
	if err != nil {
		return row, fmt.Errorf("read program: %w", err)
	}
	id, _ := want.ID()
	row.Tag = want.Tag
	method, err := m.method(h, d, hook)
	if err != nil {
		return row, err
	}
	if method == TCX {
		err = m.ensureTCX(d, hook, id, &row)
		if m.options.Force == "" && isUnsupported(err) {
			m.noTCX = true
			method = Clsact
		}
	}
	if method == Clsact {
		err = m.ensureFilter(h, d, hook, id)
	}
	if err == nil {
		row.Method, row.ID = method, uint32(id)
	}
	return row, err
}

// method is how this place is attached. The other method's attachment is taken away first: a packet that met a program
// twice would be taken for one of another connection.
func (m *Manager) method(h *netlink.Handle, d device, hook hook) (Method, error) {
	switch {
	case m.options.Force == Clsact:
		return Clsact, m.dropLink(hook.key(d.ifindex))
	case m.noTCX:
		return Clsact, nil
	case m.attached[hook.key(d.ifindex)] != nil:
		return TCX, nil
	}
	filter, err := findFilter(h, d.ifindex, hook)
	switch {
	case err != nil || filter == nil:
		return TCX, err
	case m.options.Force == TCX:
		return TCX, removeFilter(h, filter)
	}
	return Clsact, nil
}
