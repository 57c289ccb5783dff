// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachment is a link of ours, of a device or of a cgroup.
type attachment struct {
	link link.Link
	id   link.ID
	pin  string         // "": not pinned
	runs ebpf.ProgramID // what it was given last; 0: not known
}

func (a *attachment) close() error { return a.link.Close() }

// drop detaches the link and takes away its file. The program sees nothing from here on; without being told to detach, the
// kernel would let go of it some time after the file is gone.
func (a *attachment) drop() error {
	var errs []error
	if err := a.link.Detach(); err != nil {
		errs = append(errs, fmt.Errorf("detach link: %w", err))
	}
	if a.pin != "" {
		if err := os.Remove(a.pin); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove link: %w", err))
		}
	}
	return errors.Join(append(errs, a.close())...)
}

// ensureTCX finds our link on the device, or makes it, and has it run the program.
func (m *Manager) ensureTCX(d device, hook hook, want ebpf.ProgramID, row *DeviceRow) error {
	neighbours, err := link.QueryPrograms(link.QueryOptions{Target: d.ifindex, Attach: hook.attach})
	if err != nil {
		return unsupported(err)
	}
	k := hook.key(d.ifindex)
	a, err := m.current(k)
	if err != nil {
		return err
	}
	if a != nil && !attachedAt(neighbours, a.id) {
		m.log.Info("drop link that its device has no more", "device", d.name, "program", hook.program)
		if err := m.dropLink(k); err != nil {
			return err
		}
		a = nil
	}
	if a == nil {
		a, err = m.newLink(d, hook, k)
	} else {
		err = m.update(a, d, hook, neighbours, want)
	}
	if err != nil {
		return err
	}
	a.runs = want
	row.Link, row.Others = uint32(a.id), before(neighbours, a.id, hook)
	return nil
}

// current is the link we know of this place, or the one an earlier agent pinned; nil without one.
func (m *Manager) current(k key) (*attachment, error) {
	if a := m.attached[k]; a != nil || m.options.LinkDir == "" {
		return a, nil
	}
	path := k.pin(m.options.LinkDir)
	a, err := openPinned(path)
	if err == nil && a == nil && k.direction != egress { // see hook.replaces
		if err = adopt(m.former(), path); err == nil {
			a, err = openPinned(path)
		}
	}
	if err == nil && a != nil {
		m.attached[k] = a
	}
	return a, err
}

// openPinned opens a pinned link; nil when there is none.
func openPinned(path string) (*attachment, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link: %w", err)
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read pinned link: %w", err), l.Close())
	}
	return &attachment{link: l, id: info.ID, pin: path}, nil
}

// attachedAt tells whether the link is attached where the kernel was asked. An index may have gone to another device since the
// link was made, so the link's own word is not enough.
func attachedAt(q *link.QueryResult, id link.ID) bool { return position(q, id) >= 0 }

func position(q *link.QueryResult, id link.ID) int {
	return slices.IndexFunc(q.Programs, func(p link.AttachedProgram) bool {
		found, ok := p.LinkID()
		return ok && found == id
	})
}

// before lists the other programs that see a packet before ours.
func before(q *link.QueryResult, id link.ID, hook hook) []uint32 {
	others := []uint32{}
	at := position(q, id)
	if at < 0 && hook.direction == egress {
		at = len(q.Programs) // a new one goes to the end
	}
	for i := range max(at, 0) {
		others = append(others, uint32(q.Programs[i].ID))
	}
	return others
}

// newLink makes a link, pins it, and has it run the program only then: the kernel takes some ten milliseconds to attach the first one of a
// device, and if the agent were killed meanwhile, a link without a file would go with it, and with that the way of connections that had begun.
func (m *Manager) newLink(d device, hook hook, k key) (*attachment, error) {
	first, err := m.placeholder(hook)
	if err != nil {
		return nil, err
	}
	if first != hook.loaded {
		defer first.Close()
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: d.ifindex, Program: first, Attach: hook.attach, Anchor: hook.anchor})
	if err != nil {
		return nil, err
	}
	info, err := l.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read link: %w", err), l.Close())
	}
	a := &attachment{link: l, id: info.ID}
	if err := m.pin(a, k); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if first != hook.loaded {
		m.log.Debug("pinned link", "device", d.name, "program", hook.program)
		if err := l.Update(hook.loaded); err != nil {
			return nil, errors.Join(fmt.Errorf("update link: %w", err), a.drop())
		}
	}
	m.attached[k] = a
	m.log.Info("attached program", "device", d.name, "program", hook.program, "method", TCX)
	return a, nil
}

// placeholder is what a new link runs until it is pinned: a program that leaves each packet to the next one. Links that are not pinned go with
// the agent anyway, and run the hook's from the start.
func (m *Manager) placeholder(hook hook) (*ebpf.Program, error) {
	if m.options.LinkDir == "" {
		return hook.loaded, nil
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "nearlb_nothing", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()},
	})
	if err != nil {
		return nil, fmt.Errorf("load a program that does nothing: %w", err)
	}
	return p, nil
}

// tcxNext has the next program see the packet (TCX_NEXT of linux/bpf.h).
const tcxNext = -1

func (m *Manager) pin(a *attachment, k key) error {
	if m.options.LinkDir == "" {
		return nil
	}
	if err := os.MkdirAll(m.options.LinkDir, 0o700); err != nil {
		return fmt.Errorf("make link directory: %w", err)
	}
	a.pin = k.pin(m.options.LinkDir)
	if err := a.link.Pin(a.pin); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	return nil
}

// update exchanges the program under the link, in place, and pins the link again if somebody removed its file.
func (m *Manager) update(a *attachment, d device, hook hook, q *link.QueryResult, want ebpf.ProgramID) error {
	if q.Programs[position(q, a.id)].ID != want {
		if err := a.link.Update(hook.loaded); err != nil {
			return fmt.Errorf("update link: %w", err)
		}
		m.log.Info("replaced program", "device", d.name, "program", hook.program, "method", TCX)
	}
	return m.repin(a, hook.key(d.ifindex))
}

// dropLink detaches what is in one place by a link, if anything.
func (m *Manager) dropLink(k key) error {
	a, err := m.current(k)
	if err != nil || a == nil {
		return err
	}
	delete(m.attached, k)
	return a.drop()
}

// unsupported marks what a kernel before 6.6 answers to the question what is attached.
func unsupported(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
	}
	return err
}

func isUnsupported(err error) bool { return errors.Is(err, ebpf.ErrNotSupported) }
