// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"context"
	"time"
)

// How often links are glanced at, as the kernel tells nobody of one that is detached or gets another program. It takes four microseconds to
// ask of one (of which the kernel needs nearly all), so that this is a thousandth of a processor at most, however many there are.
const (
	glanceEvery = time.Second
	glanceEach  = 4 * time.Millisecond // for each link, where there are more than 250
)

func untilGlance(links int) time.Duration {
	return max(glanceEvery, time.Duration(links)*glanceEach)
}

// intact tells whether the link is yet where it was attached, and runs what it was given last. It is when nobody can tell.
func (a *attachment) intact() bool {
	if a.runs == 0 {
		return true
	}
	info, err := a.link.Info()
	if err != nil {
		return true
	}
	if info.Program != a.runs {
		return false
	}
	if at := info.TCX(); at != nil {
		return at.Ifindex != 0
	}
	if at := info.XDP(); at != nil {
		return at.Ifindex != 0
	}
	if at := info.Cgroup(); at != nil {
		return at.CgroupId != 0
	}
	return true
}

// idle returns after d, when something comes in, or when broken, which is asked every now and then unless it is nil, finds something; false when ctx ended.
func idle(ctx context.Context, d time.Duration, in <-chan struct{}, links int, broken func() bool) bool {
	for end := time.Now().Add(d); ; {
		pause := min(untilGlance(links), time.Until(end))
		woken, ok := wait(ctx, pause, in)
		switch {
		case !ok:
			return false
		case woken || !time.Now().Before(end) || broken != nil && broken():
			return true
		}
	}
}

// glance has a running Manager look at the devices whose links are not as it left them, but for those that fail anyway, which are tried again with
// back-off. It tells whether there are any.
func (m *Manager) glance() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dueMu.Lock()
	defer m.dueMu.Unlock()
	var found change
	now := time.Now()
	for k, a := range m.attached {
		if !a.intact() && !m.fails(k.ifindex) && !m.fights.of(k.ifindex, now).rests(now) {
			found.device(k.ifindex)
		}
	}
	for ifindex := range found.devices {
		m.fights.of(ifindex, now).again(now)
	}
	m.due.add(found)
	return found.devices != nil
}

func (m *Manager) links() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.attached)
}

// broken tells whether a link of the hooks is not as it was left.
func (s *SocketHooks) broken() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.fight.rests(now) {
		return false
	}
	for _, a := range s.links {
		if !a.intact() {
			s.fight.again(now)
			return true
		}
	}
	return false
}
