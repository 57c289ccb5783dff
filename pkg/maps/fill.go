// SPDX-License-Identifier: Apache-2.0

package maps

// fillAhead is how many tiers may wait to be filled: a second goroutine is hardly ever without work, and little waits.
const fillAhead = 256

// filler fills slots beside the goroutine that publishes.
type filler struct {
	runs  chan freshRun
	sums  []filled
	ended chan struct{} // closed: sums is complete
}

type filled struct {
	*run
	sum uint64
}

// Defer begins a time in which no program reads the tables. Until Settle, Maglev tables, which are two fifths of the work of publishing, are
// computed and written by a goroutine of their own, in no order with what names them. unused says that the tables were just made, so that
// all counters are zero.
func (t *Tables) Defer(unused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.filler == nil {
		t.filler, t.unused = t.newFiller(), unused
	}
}

// Settle ends what Defer began, once all that was published is in the tables.
func (t *Tables) Settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopFiller()
}

func (t *Tables) stopFiller() {
	if t.filler != nil {
		t.filler.wait()
		t.filler, t.unused = nil, false
	}
}

// settle waits until no slots are to be filled by another goroutine any more. Further ones may be handed over after that.
func (t *Tables) settle() {
	if t.filler != nil {
		t.filler.wait()
		t.filler = t.newFiller()
	}
}

// wait ends the goroutine once it has filled all.
func (f *filler) wait() {
	close(f.runs)
	<-f.ended
	for _, done := range f.sums {
		done.run.sum = done.sum
	}
}

func (t *Tables) newFiller() *filler {
	f := &filler{runs: make(chan freshRun, fillAhead), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for r := range f.runs {
			f.sums = append(f.sums, filled{r.run, t.fillSlots(r)})
		}
	}()
	return f
}

// fillSlots writes a tier's Maglev table, and gives its checksum.
func (t *Tables) fillSlots(r freshRun) uint64 {
	slots := t.table(r.run, r.members)
	t.store.slots.fill(r.first, slots)
	return checksum(slots)
}
