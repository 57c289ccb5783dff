// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Sync brings every pod device to what it should have, once: attaches, puts new programs in the place of old ones, and
// removes what is not wanted any more. A device that fails does not keep the others; the error joins all failures.
func (m *Manager) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	devices, err := listDevices(h)
	if err != nil {
		return err
	}
	pods := m.selection().pods(devices)
	err = errors.Join(m.removeOthers(h, devices, pods), m.ensureAll(h, pods))
	m.started = true
	if err == nil && m.options.Synced != nil {
		m.options.Synced()
	}
	return err
}

func (m *Manager) selection() selection {
	s := selection{patterns: m.options.Pods}
	if m.options.NodeAddresses != nil {
		s.node = m.options.NodeAddresses()
	}
	return s
}

// ensureAll attaches to every pod device and notes what came of it.
func (m *Manager) ensureAll(h *netlink.Handle, pods []device) error {
	var errs []error
	var rows []DeviceRow
	failing := map[key]string{}
	for _, d := range pods {
		for i, hook := range m.hooks {
			row, err := m.ensure(h, d, hook)
			if err != nil && vanished(h, d) {
				break // it went while we looked
			}
			if err != nil {
				err = fmt.Errorf("attach %s to %s: %w", hook.program, d.name, err)
				row.Error = err.Error()
				failing[hook.key(d.ifindex)] = row.Error
				m.sayFailure(d, hook, err)
				errs = append(errs, err)
			}
			rows = append(rows, row)
			if err != nil {
				rows = append(rows, waiting(d, m.hooks[i+1:], hook)...)
				break
			}
		}
	}
	m.failing = failing
	m.setRows(rows)
	return errors.Join(errs...)
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
