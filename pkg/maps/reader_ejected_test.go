// SPDX-License-Identifier: Apache-2.0

package maps

import "testing"

// A backend that is left out keeps the state of its endpoint: who asks for active ones finds it, and that it is left out stands beside it.
func TestABackendThatIsLeftOutKeepsItsState(t *testing.T) {
	b := newBench(t, memoryStore(tinySizes()))
	if _, err := b.Apply(made(1, weighted(1, 1, 1, 1)...)); err != nil {
		t.Fatal(err)
	}
	suspect := b.suspectOf(t, 0)
	if refused, err := b.Eject(suspect, b.store.clock.boot()+1e9, 1); refused != "" || err != nil {
		t.Fatal(refused, err)
	}
	out := 0
	for _, row := range collect(t, b.Reader().Backends()) {
		left := row.ID == suspect.ID
		if row.State != "active" || (row.EjectedUntil != "") != left || (row.EjectedSince != "") != left || (row.EjectedBecause != "") != left {
			t.Errorf("%+v", row)
		}
		if left {
			out++
		}
	}
	if out != 1 {
		t.Errorf("%d rows of the backend that is left out", out)
	}
}
