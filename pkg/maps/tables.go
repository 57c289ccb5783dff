// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Open takes over the tables, whoever wrote them: ids, records, slots and names are restored from what is in them, so that the
// decisions published before cost no write when they come again. Entries that make no sense are left alone and listed by
// Audit. The tables must stay open as long as these are used.
func Open(m *bpf.NearlbMaps) (*Tables, error) {
	s, err := kernelStore(m, false)
	if err != nil {
		return nil, err
	}
	if b, err := bpf.NewBarrier(); err == nil { // without it replaced slots wait for their grace, even when there are no others
		unmap := s.close
		s.wait, s.close = b.Wait, func() error { return errors.Join(unmap(), b.Close()) }
	}
	t, err := open(s)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return t, nil
}

// NewFake is the same publisher over plain memory, with the kernel's limits and without its privileges.
func NewFake(sizes bpf.Sizes) *Tables {
	t, err := open(memoryStore(sizes))
	if err != nil {
		panic(err) // plain memory gives no errors
	}
	return t
}

// Watch has wrote called after each single write to the tables, in the middle of whatever writes: for tests that look at the
// tables there, or end the process.
func (t *Tables) Watch(wrote func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle()
	t.store.watch(wrote)
}

// Close gives the mapped memory back. The tables stay as they are, but that names are answered no more (Beat).
func (t *Tables) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counting.Lock()
	defer t.counting.Unlock()
	t.beating.Lock()
	defer t.beating.Unlock()
	t.stopFiller()
	if !t.closed && read[bpf.NearlbSettings](t.store.settings, 0).Responder != 0 {
		t.store.beat(0)
	}
	t.closed = true
	if s := t.searching; s != nil && s.stop != nil {
		s.stop()
	}
	t.searching = nil
	return t.store.close()
}

// Stats counts what one call wrote.
type Stats struct {
	Frontends     int              `json:"frontends"`          // entries set or deleted
	Records       int              `json:"records"`            // records written
	Slots         int              `json:"slots"`              // slots of fresh Maglev tables, written in bulk
	SlotRuns      int              `json:"slotRuns"`           // fresh Maglev tables
	Backends      int              `json:"backends"`           // entries written or changed in place
	SourceRanges  int              `json:"sourceRanges"`       // entries set or deleted
	Names         int              `json:"names"`              // entries set or deleted
	AddressFilter int              `json:"addressFilter"`      // bits set or cleared
	Counters      int              `json:"counters"`           // counters set to zero for a new owner
	Problems      []lb.Problem     `json:"problems,omitempty"` // frontends of the Service that another Service has
	Noted         []Noted          `json:"-"`                  // what changed for clients, where it is asked for (Tables.Note)
	Moved         bool             `json:"-"`                  // a frontend of UDP came to the Service that may have been another's
	Again         []lb.ServiceName `json:"again,omitempty"`    // other Services whose frontends changed hands, to be decided and applied again
}

// Total is the number of writes, slots in bulk left out.
func (s Stats) Total() int {
	return s.Frontends + s.Records + s.SlotRuns + s.Backends + s.SourceRanges + s.Names + s.AddressFilter + s.Counters
}

// FullError says that a decision does not fit a table. What was published for the Service before goes on being served.
type FullError struct {
	Table   string
	Limit   uint32
	Service lb.ServiceName
	Wants   int // entries of the Service in the table; 0: that is not said
}

// Error names the flag that bounds the table, too.
func (e *FullError) Error() string {
	text := fmt.Sprintf("publish service %s: table %s is full (%d entries)", e.Service, e.Table, e.Limit)
	if e.Wants > 0 {
		text += fmt.Sprintf(", the Service wants %d", e.Wants)
	}
	if new(bpf.Sizes).Of(e.Table) != nil {
		text += ": raise the agent's " + bpf.SizeFlag(e.Table)
	}
	return text
}

// Drift is one difference between the live tables and what was published.
type Drift struct {
	Table    string `json:"table"`
	Entry    string `json:"entry"`
	Problem  string `json:"problem"`
	Repaired bool   `json:"repaired"`
}

// String is one line.
func (d Drift) String() string { return d.Table + " " + d.Entry + ": " + d.Problem }
