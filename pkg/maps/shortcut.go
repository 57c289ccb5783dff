// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"sync/atomic"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Shortcut says whether translated packets leave past the host's stack.
type Shortcut uint8

// The zero value is off.
const (
	ShortcutOff = Shortcut(bpf.NearlbShortcutModeSHORTCUT_OFF)
	ShortcutOn  = Shortcut(bpf.NearlbShortcutModeSHORTCUT_ON)
	// ShortcutWhileBeating is on for less than a second after each BeatShortcut.
	ShortcutWhileBeating = Shortcut(bpf.NearlbShortcutModeSHORTCUT_WHILE_BEATING)
)

// wordShortcut has snat_wide, shortcut and its heartbeat.
const wordShortcut = int(unsafe.Offsetof(bpf.NearlbSettings{}.ShortcutBeat) / 4)

// BeatShortcut says, at a time of CLOCK_MONOTONIC in nanoseconds, that nothing is passed by: where the settings are ShortcutWhileBeating, or
// were until a beat came late. It waits for no publication, and does nothing once the tables are closed.
func (t *Tables) BeatShortcut(at uint64) {
	t.beating.Lock()
	defer t.beating.Unlock()
	if t.closed {
		return
	}
	var s bpf.NearlbSettings
	word := t.store.settings.word(0, wordShortcut)
	for {
		old := atomic.LoadUint32(word)
		*at32(&s) = old
		s.Shortcut, s.ShortcutBeat = uint8(ShortcutWhileBeating), uint16(at>>bpf.NearlbShortcutBeatsSHORTCUT_BEAT_SHIFT)
		if atomic.CompareAndSwapUint32(word, old, *at32(&s)) {
			return
		}
	}
}

func at32(s *bpf.NearlbSettings) *uint32 {
	return (*uint32)(unsafe.Add(unsafe.Pointer(s), 4*wordShortcut))
}
