// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf/link"

	"github.com/nearlb/nearlb/pkg/cgroup"
)

// Sync brings the cgroup to what it should have, once: attaches, puts new programs in the place of old ones, and detaches
// what the mode does not want or another cgroup has. After a failure, later hooks are left as they are.
func (s *SocketHooks) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rows []DeviceRow
	var err error
	if s.options.Mode == NoSockets {
		err = s.detach()
	} else {
		rows, err = s.attach()
	}
	s.setRows(rows)
	s.sayFailure(err)
	select {
	case <-s.tried:
	default:
		close(s.tried)
	}
	if s.options.Synced != nil {
		s.options.Synced()
	}
	return err
}

// Tried is closed when the first Sync has been through all hooks, whether or not each of them took its program.
func (s *SocketHooks) Tried() <-chan struct{} { return s.tried }

// sayFailure logs a failure when it is new or another one than before.
func (s *SocketHooks) sayFailure(err error) {
	now := ""
	if err != nil {
		now = err.Error()
	}
	if now != s.told && err != nil {
		s.log.Error("attach to cgroup", "error", err)
	}
	s.told = now
}

// place is the cgroup that the programs belong to.
type place struct {
	dir string
	id  uint64
}

func (s *SocketHooks) place() (place, error) {
	dir := s.options.Cgroup
	if dir == "" {
		mount, err := cgroup.Find()
		if err != nil {
			return place{}, fmt.Errorf("%w; mount one (mount -t cgroup2 none DIR), name --cgroup, or leave the node's own clients to others (--socket-lb=off)", err)
		}
		dir = mount.Point
	}
	id, err := cgroup.ID(dir)
	return place{dir, id}, err
}

func (s *SocketHooks) attach() ([]DeviceRow, error) {
	if err := s.options.check(); err != nil {
		return nil, err
	}
	where, err := s.place()
	if err != nil {
		err = fmt.Errorf("serve the node's own clients: %w", err)
		return unattached(socketHooks(), place{s.options.Cgroup, 0}, err), err
	}
	var rows []DeviceRow
	for i, h := range socketHooks() {
		row, err := s.ensure(h, where)
		if err != nil {
			err = fmt.Errorf("serve the node's own clients: attach %s to %s: %w", h.program(), where.dir, err)
			return append(rows, unattached(socketHooks()[i:], where, err)...), err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// unattached are the rows of hooks from the one that failed on.
func unattached(hooks []socketHook, where place, err error) []DeviceRow {
	var rows []DeviceRow
	for _, h := range hooks {
		row := h.row(where.dir)
		row.Error = err.Error()
		rows = append(rows, row)
	}
	return rows
}

// ensure brings one hook up to date.
func (s *SocketHooks) ensure(h socketHook, where place) (DeviceRow, error) {
	row := h.row(where.dir)
	program, err := s.options.Programs[h.program()].Info()
	if err != nil {
		return row, fmt.Errorf("read program: %w", err)
	}
	want, _ := program.ID()
	a, at, err := s.current(h)
	if err != nil {
		return row, err
	}
	switch {
	case a == nil || at.Cgroup().CgroupId != where.id:
		err = s.replace(h, where, a)
	case at.Program != want:
		err = s.update(h, a)
	}
	if err == nil {
		err = s.pinAgain(h)
	}
	if err == nil {
		s.links[h.name].runs = want
		row.Method, row.ID, row.Tag, row.Link = CgroupLink, uint32(want), program.Tag, uint32(s.links[h.name].id)
	}
	return row, err
}

// current is the link we know of, or the one an earlier agent pinned, and what the kernel says of it; nil without one.
func (s *SocketHooks) current(h socketHook) (*attachment, *link.Info, error) {
	a := s.links[h.name]
	if a == nil && s.options.LinkDir != "" {
		var err error
		path := h.pin(s.options.LinkDir)
		if a, err = openPinned(path); err == nil && a == nil && h.replaces() && s.options.Former != nil {
			if err = adopt(s.options.Former(), path); err == nil {
				a, err = openPinned(path)
			}
		}
		if err != nil || a == nil {
			return nil, nil, err
		}
		s.links[h.name] = a
	}
	if a == nil {
		return nil, nil, nil
	}
	info, err := a.link.Info()
	if err != nil {
		return nil, nil, fmt.Errorf("read link: %w", err)
	}
	if info.Cgroup() == nil {
		return nil, nil, fmt.Errorf("use pinned link %s: it is not one of a cgroup", a.pin)
	}
	return a, info, nil
}

// replace attaches a new link and then takes away the old one, which is on another cgroup or on one that is gone.
func (s *SocketHooks) replace(h socketHook, where place, old *attachment) error {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: where.dir, Attach: h.attach, Program: s.options.Programs[h.program()]})
	if err != nil {
		return err
	}
	info, err := l.Info()
	if err != nil {
		return errors.Join(fmt.Errorf("read link: %w", err), l.Close())
	}
	if old != nil {
		if err := s.drop(h); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	s.links[h.name] = &attachment{link: l, id: info.ID}
	s.log.Info("attached program", "cgroup", where.dir, "program", h.program(), "method", CgroupLink)
	return nil
}

// update exchanges the program under the link, in place.
func (s *SocketHooks) update(h socketHook, a *attachment) error {
	if err := a.link.Update(s.options.Programs[h.program()]); err != nil {
		return fmt.Errorf("update link: %w", err)
	}
	s.log.Info("replaced program", "program", h.program(), "method", CgroupLink)
	return nil
}

// pinAgain pins the link, if it has no file yet or somebody removed it.
func (s *SocketHooks) pinAgain(h socketHook) error {
	if s.options.LinkDir == "" {
		return nil
	}
	a, path := s.links[h.name], h.pin(s.options.LinkDir)
	if _, err := os.Lstat(path); a.pin == path && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.MkdirAll(s.options.LinkDir, 0o700); err != nil {
		return fmt.Errorf("make link directory: %w", err)
	}
	if err := a.link.Unpin(); err != nil { // it does not know that its file is gone
		return fmt.Errorf("forget pin: %w", err)
	}
	if err := a.link.Pin(path); err != nil {
		return fmt.Errorf("pin link: %w", err)
	}
	a.pin = path
	return nil
}

// detach takes all links away: requests stop being translated before answers do.
func (s *SocketHooks) detach() error {
	var errs []error
	for _, h := range slices.Backward(socketHooks()) {
		a, _, err := s.current(h)
		if err == nil && a != nil {
			err = s.drop(h)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", h.program(), err))
		}
	}
	return errors.Join(errs...)
}

// drop takes away the link that we have.
func (s *SocketHooks) drop(h socketHook) error {
	a := s.links[h.name]
	delete(s.links, h.name)
	return a.drop()
}
