// SPDX-License-Identifier: Apache-2.0

package bpf_test

import (
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Reasons and notes are found by their spelling, and to find one takes no memory: each publication does.
func TestNumbersOfReasonsAndNotesAreFoundByTheirNames(t *testing.T) {
	for number := range uint8(bpf.NearlbReasonREASON_SAME_ZONE) + 1 {
		if name := bpf.ReasonName(number); bpf.ReasonNumber(name) != number {
			t.Errorf("reason %d is %q, which is %d", number, name, bpf.ReasonNumber(name))
		}
	}
	for number := range uint8(bpf.NearlbNoteNOTE_NO_HINTS) + 1 {
		if name := bpf.NoteName(number); bpf.NoteNumber(name) != number {
			t.Errorf("note %d is %q, which is %d", number, name, bpf.NoteNumber(name))
		}
	}
	if number := bpf.ReasonNumber("of another version"); number != 0 {
		t.Errorf("an unknown reason is %d", number)
	}
	if allocated := testing.AllocsPerRun(100, func() { bpf.ReasonNumber("same-zone"); bpf.NoteNumber("") }); allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}
