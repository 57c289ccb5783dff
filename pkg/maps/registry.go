// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// The kinds of names.
const (
	servicePortName = uint32(bpf.NearlbNameKindNAME_SERVICE_PORT)
	nodeName        = uint32(bpf.NearlbNameKindNAME_NODE)
	zoneName        = uint32(bpf.NearlbNameKindNAME_ZONE)
)

// named is the id of a node or a zone with its name in the names table.
type named struct {
	kind uint32
	id   uint32
	text string
	refs int // backends that name it, and the tunnel

	carried         bool      // connections may name it: it was a node of the tunnel
	since, searched time.Time // when refs became 0, and when connections were last searched for it
}

func (n *named) key() nameKey { return nameKey{Kind: n.kind, Id: n.id} }

// number is the id as backends have it; 0, unknown, for none.
func (n *named) number() uint16 {
	if n == nil {
		return 0
	}
	return uint16(n.id)
}

// name is empty for none.
func (n *named) name() string {
	if n == nil {
		return ""
	}
	return n.text
}

// registry gives ids to names, one number space for each kind. Id 0 is never given. Service ports know their ids themselves;
// nodes and zones are found here.
type registry struct {
	limit  uint32 // of the table, over all kinds
	limits map[uint32]uint32
	ids    map[uint32]*ids
	places map[uint32]*places
	unused map[*named]bool // nodes and zones that may have no backend any more
	count  int
}

// places are the names of one kind.
type places struct {
	byText map[string]*named
	byID   map[uint16]*named
}

func newRegistry(sizes bpf.Sizes) *registry {
	r := &registry{limit: sizes.Names, ids: map[uint32]*ids{}, places: map[uint32]*places{}, unused: map[*named]bool{},
		limits: map[uint32]uint32{servicePortName: sizes.Services, nodeName: 1 << 16, zoneName: 1 << 16}}
	for kind := range r.limits {
		r.number(kind, &idSet{})
	}
	for _, kind := range []uint32{nodeName, zoneName} {
		r.places[kind] = &places{map[string]*named{}, map[uint16]*named{}}
	}
	return r
}

// number restores which ids are taken.
func (r *registry) number(kind uint32, taken *idSet) {
	r.ids[kind] = newIDs(1, r.limits[kind], taken)
}

// errFullTable says which table or number space had no room.
type errFullTable struct {
	table string
	limit uint32
}

func (e errFullTable) Error() string {
	return fmt.Sprintf("table %s is full (%d entries)", e.table, e.limit)
}

// unwritten are the errors of what could not be written, of which there may be thousands: those of a table that is full count as one. The zero
// value is none.
type unwritten struct {
	errs []error
	full []fullTable
}

// fullTable is a table without room for so many entries.
type fullTable struct {
	errFullTable
	entries int
}

func (u *unwritten) add(err error) {
	var full errFullTable
	switch {
	case err == nil:
	case !errors.As(err, &full):
		u.errs = append(u.errs, err)
	default:
		i := slices.IndexFunc(u.full, func(f fullTable) bool { return f.errFullTable == full })
		if i < 0 {
			i, u.full = len(u.full), append(u.full, fullTable{full, 0})
		}
		u.full[i].entries++
	}
}

// join names the flag that bounds a table, too.
func (u *unwritten) join() error {
	errs := u.errs
	for _, f := range u.full {
		lack, flag := "", ""
		if f.entries > 1 {
			lack = fmt.Sprintf(", and %d entries have no room", f.entries)
		}
		if new(bpf.Sizes).Of(f.table) != nil {
			flag = ": raise the agent's " + bpf.SizeFlag(f.table)
		}
		errs = append(errs, fmt.Errorf("%w%s%s", f.errFullTable, lack, flag))
	}
	return errors.Join(errs...)
}

// find gives a place's id, a fresh one where it had none.
func (r *registry) find(kind uint32, text string) (n *named, fresh bool, err error) {
	if n := r.places[kind].byText[text]; n != nil {
		return n, false, nil
	}
	id, err := r.take(kind, text)
	if err != nil {
		return nil, false, err
	}
	n = &named{kind: kind, id: id, text: text}
	r.add(n)
	return n, true, nil
}

// take reserves an id for a name, and its entry in the table.
func (r *registry) take(kind uint32, text string) (uint32, error) {
	if len(text) > nameLimit {
		return 0, fmt.Errorf("name %q is longer than %d bytes", text, nameLimit)
	}
	if r.count >= int(r.limit) {
		return 0, errFullTable{bpf.NearlbMapNames, r.limit}
	}
	id, ok := r.ids[kind].take()
	if !ok {
		table := bpf.NearlbMapNames
		if kind == servicePortName {
			table = bpf.NearlbMapServiceCounters
		}
		return 0, errFullTable{table, r.limits[kind]}
	}
	r.count++
	return id, nil
}

// give gives an id back, and the entry.
func (r *registry) give(kind, id uint32) {
	r.ids[kind].give(id)
	r.count--
}

// add makes a place known, which may have no backend yet.
func (r *registry) add(n *named) {
	r.places[n.kind].byText[n.text] = n
	r.places[n.kind].byID[uint16(n.id)] = n
	r.unused[n] = true
}

// forget gives a place's id back.
func (r *registry) forget(n *named) {
	delete(r.places[n.kind].byText, n.text)
	delete(r.places[n.kind].byID, uint16(n.id))
	delete(r.unused, n)
	r.give(n.kind, n.id)
}

// ref counts a backend to its node and its zone.
func (r *registry) ref(row *backendRow) {
	for _, n := range r.of(row) {
		if n != nil {
			r.keep(n)
		}
	}
}

func (r *registry) unref(row *backendRow) {
	for _, n := range r.of(row) {
		if n != nil {
			r.leave(n)
		}
	}
}

// keep counts something else than a backend that names a place.
func (r *registry) keep(n *named) {
	n.refs++
	delete(r.unused, n)
}

// leave ends what keep began.
func (r *registry) leave(n *named) {
	if n.refs--; n.refs == 0 {
		r.unused[n] = true
	}
}

// of are the node and the zone of a backend, nil where unknown.
func (r *registry) of(row *backendRow) [2]*named {
	return [2]*named{r.places[nodeName].byID[row.Node], r.places[zoneName].byID[row.Zone]}
}
