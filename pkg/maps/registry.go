// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// The kinds of names.
const (
	servicePortName = uint32(bpf.NearlbNameKindNAME_SERVICE_PORT)
	nodeName        = uint32(bpf.NearlbNameKindNAME_NODE)
	zoneName        = uint32(bpf.NearlbNameKindNAME_ZONE)
)

// named is an id with a name in the names table.
type named struct {
	kind uint32
	id   uint32
	text string
	refs int
}

func (n *named) key() nameKey { return nameKey{Kind: n.kind, Id: n.id} }

// number is the id as backends have it; 0, unknown, for none.
func (n *named) number() uint16 {
	if n == nil {
		return 0
	}
	return uint16(n.id)
}

// registry gives ids to names, one number space for each kind. Id 0 is never given.
type registry struct {
	limit  uint32 // of the table, over all kinds
	limits map[uint32]uint32
	ids    map[uint32]*ids
	byText map[uint32]map[string]*named
	count  int
}

func newRegistry(sizes bpf.Sizes) *registry {
	r := &registry{limit: sizes.Names, ids: map[uint32]*ids{}, byText: map[uint32]map[string]*named{},
		limits: map[uint32]uint32{servicePortName: sizes.Services, nodeName: 1 << 16, zoneName: 1 << 16}}
	for kind := range r.limits {
		r.byText[kind] = map[string]*named{}
		r.number(kind, nil)
	}
	return r
}

// number restores which ids are taken.
func (r *registry) number(kind uint32, taken map[uint32]bool) {
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

// find gives the name's id, a fresh one where it had none.
func (r *registry) find(kind uint32, text string) (n *named, fresh bool, err error) {
	if n := r.byText[kind][text]; n != nil {
		return n, false, nil
	}
	if len(text) > nameLimit {
		return nil, false, fmt.Errorf("name %q is longer than %d bytes", text, nameLimit)
	}
	if r.count >= int(r.limit) {
		return nil, false, errFullTable{bpf.NearlbMapNames, r.limit}
	}
	id, ok := r.ids[kind].take()
	if !ok {
		table := bpf.NearlbMapNames
		if kind == servicePortName {
			table = bpf.NearlbMapServiceCounters
		}
		return nil, false, errFullTable{table, r.limits[kind]}
	}
	n = &named{kind: kind, id: id, text: text}
	r.add(n)
	return n, true, nil
}

func (r *registry) add(n *named) {
	r.byText[n.kind][n.text] = n
	r.count++
}

// forget gives a name's id back.
func (r *registry) forget(n *named) {
	delete(r.byText[n.kind], n.text)
	r.ids[n.kind].give(n.id)
	r.count--
}
