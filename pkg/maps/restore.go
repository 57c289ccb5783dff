// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"slices"
	"time"
	"unique"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// strays are entries that make no sense or that no service port owns. They stay as they are, and their ids taken, until
// Audit repairs.
type strays struct {
	backends map[uint32]backendRow
	ranges   map[rangeKey]bool
	names    map[nameKey]string
	services map[uint32]bool // ids of service ports without a name that entries mention
}

// open builds the mirror of what is in the tables.
func open(s *store) (*Tables, error) {
	for name, a := range map[string]*array{"records": s.records, "slots": s.slots, "backends": s.backends, "backend_health": s.health, "flows": s.flows, "flow_tags": s.tags, "flow_overflows": s.over, "flow_spills": s.spills, "flow_begun": s.begun, "syn_times": s.syn,
		"known_addresses": s.filter, "config": s.settings} {
		if err := a.check(name); err != nil {
			return nil, err
		}
	}
	if err := s.closeNames(); err != nil { // they are those of another process
		return nil, fmt.Errorf("restore tables: %w", err)
	}
	t := &Tables{
		store: s, now: time.Now, piece: defaultSearchPiece, tableSize: decide.TableSize, sharesOf: decide.SharesOf, services: map[lb.ServiceName]*service{}, claims: newClaims(),
		frontends: map[frontendKey]*frontend{}, behind: map[lb.ServiceName]error{}, again: map[lb.ServiceName]bool{},
		names: newRegistry(s.sizes), gone: map[uint32]*goneBackend{}, out: map[uint32]*leftOut{}, idle: map[*port]time.Time{}, leaving: map[*port]bool{}, moved: map[frontendKey]*staleMark{},
		bits: newBitCounts(), tunnelNodes: map[string]*named{}, stale: map[filterBit]*staleMark{}, loads: 1,
		strays: strays{map[uint32]backendRow{}, map[rangeKey]bool{}, map[nameKey]string{}, map[uint32]bool{}},
	}
	r := &restorer{t: t, ports: map[uint32]*port{}, ids: map[uint32]*idSet{servicePortName: {}, nodeName: {}, zoneName: {}},
		slots: newTakenSlots(s.sizes.Slots), shares: make([]uint32, s.backends.size)}
	for _, step := range []func() error{r.names, r.backends, r.frontends, r.ranges} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("restore tables: %w", err)
		}
	}
	t.slots, t.unverified = r.slots.spans(), r.found
	r.numbers()
	t.restoreHealth(r.ports)
	r.staleBits()
	for _, p := range r.ports {
		t.lookAt(p)
	}
	t.sources = restoreSources(t.store.settings, t.now())
	t.writeSources()                         // who carried them over may not know of the bits
	if err := s.endFlowCount(); err != nil { // the agent before was asked
		return nil, fmt.Errorf("restore tables: %w", err)
	}
	return t, t.defaults()
}

// restorer reads the live tables into a mirror.
type restorer struct {
	t      *Tables
	ports  map[uint32]*port  // by id
	ids    map[uint32]*idSet // taken by names, by kind
	slots  *takenSlots
	found  []*run   // that tiers may share
	shares []uint32 // by backend id: how many slots of the run that is looked at; zero in between
}

// names come first: they tell which Service an id is.
func (r *restorer) names() error {
	table := r.t.store.names
	keys := []nameKey{}
	texts := map[nameKey]string{}
	for key, text := range table.all() {
		keys = append(keys, key)
		texts[key] = text
	}
	if err := table.err(); err != nil {
		return fmt.Errorf("read table names: %w", err)
	}
	slices.SortFunc(keys, func(a, b nameKey) int { return int(a.Id) - int(b.Id) })
	for _, key := range keys {
		if !r.name(key, texts[key]) {
			r.t.strays.names[key] = texts[key]
		}
	}
	r.t.names.count += len(r.t.strays.names)
	return nil
}

func (r *restorer) name(key nameKey, text string) bool {
	t := r.t
	limit, known := t.names.limits[key.Kind]
	if !known || key.Id == 0 || key.Id >= limit || text == "" || r.ids[key.Kind].has(key.Id) {
		return false
	}
	if key.Kind == servicePortName {
		name, err := parsePortName(text)
		if err != nil || name.String() != text {
			return false
		}
		s := t.service(name.Service)
		if s.port(name.Key()) != nil {
			return false
		}
		p := &port{service: s, key: unique.Make(name.Key()), id: key.Id}
		s.ports = append(s.ports, p)
		r.ports[key.Id] = p
	} else {
		if t.names.places[key.Kind].byText[text] != nil {
			return false
		}
		t.names.add(&named{kind: key.Kind, id: key.Id, text: text, carried: key.Kind == nodeName})
	}
	r.ids[key.Kind].add(key.Id)
	t.names.count++
	return true
}

// backends takes every used id, to its service port where there is one.
func (r *restorer) backends() error {
	t := r.t
	taken := &idSet{}
	for id := uint32(1); id < t.store.backends.size; id++ {
		state := uint8(t.store.backends.load(id, wordState) >> 16)
		if state == stateFree {
			continue
		}
		taken.add(id)
		row := read[backendRow](t.store.backends, id)
		for _, k := range t.store.ofBackend(&row) { // a stray's connections need their replies translated, too
			t.restored(k)
		}
		if p := r.ports[row.Service]; p != nil && row.State <= stateResponder {
			p.backends = append(p.backends, backend{id: id, row: row})
		} else {
			r.stray(id, row)
		}
	}
	for _, p := range r.ports {
		r.sort(p)
	}
	t.backendIDs = newIDs(1, t.store.sizes.Backends, taken)
	return nil
}

func (r *restorer) stray(id uint32, row backendRow) {
	r.t.strays.backends[id] = row
	r.t.strays.services[row.Service] = true
}

// sort brings the backends of a port into their order. Of two with one address the lower id is right.
func (r *restorer) sort(p *port) {
	inOrder := func(a, b backend) int { return cmp.Or(wire(&a.row).compare(wire(&b.row)), cmp.Compare(a.id, b.id)) }
	if !slices.IsSortedFunc(p.backends, inOrder) {
		slices.SortFunc(p.backends, inOrder)
	}
	all := p.backends
	p.backends = make([]backend, 0, len(all))
	for _, b := range all {
		if last := len(p.backends) - 1; last >= 0 && *wire(&p.backends[last].row) == *wire(&b.row) {
			r.stray(b.id, b.row)
			continue
		}
		p.backends = append(p.backends, b)
		r.backend(p, &p.backends[len(p.backends)-1])
	}
}

// backend counts a backend to its node's and zone's name. An id without one is unknown, so that the next decision writes it.
func (r *restorer) backend(p *port, b *backend) {
	t := r.t
	places := t.names.of(&b.row)
	b.row.Node, b.row.Zone = places[0].number(), places[1].number()
	t.names.ref(&b.row)
	if gone(b.row.State) {
		t.gone[b.id] = &goneBackend{port: p, row: b.row, since: t.now()}
	}
}

// frontends takes every entry with its record and slots. An entry whose record is not its own is a stray with a record that
// no service port owns.
func (r *restorer) frontends() error {
	t := r.t
	taken := &idSet{}
	runs := map[span]*run{}
	for key, number := range t.store.frontends.all() {
		f := &frontend{key: key, record: number}
		if number > 0 && number < t.store.records.size && !taken.has(number) {
			taken.add(number)
			f.value = read[recordValue](t.store.records, number)
		} else {
			f.record = 0
		}
		t.frontends[key] = f
		t.restored(t.knownFrontend(f))
		if f.value.Key == key {
			f.port = r.ports[f.value.Service]
		}
		if f.port == nil {
			t.strays.services[f.value.Service] = true
		}
		r.tiers(f, runs)
		if f.port != nil {
			f.port.frontends = append(f.port.frontends, f)
			r.claim(f)
		}
	}
	if err := t.store.frontends.err(); err != nil {
		return fmt.Errorf("read table frontends: %w", err)
	}
	t.recordIDs = newIDs(1, t.store.sizes.Records, taken)
	return nil
}

// claim stands for the Service's wish until its decision comes.
func (r *restorer) claim(f *frontend) {
	owner := f.port.service
	owner.keys = append(owner.keys, f.key)
	owner.keepLost = owner.keepLost || f.value.Flags&uint8(bpf.NearlbRecordFlagsRECORD_KEEP_LOST) != 0
	r.t.claims.own(f.key, claim{service: owner, port: f.port.key, kind: kindOf(kindName(f.value.Kind))})
}

// tiers reserves the slots that a record names. A tier that does not fit in makes the entry a stray.
func (r *restorer) tiers(f *frontend, runs map[span]*run) {
	for _, side := range f.value.Sides {
		for _, tier := range side.Tiers {
			if tier.Count == 0 {
				continue
			}
			have := r.run(f, span{tier.First, tier.Count}, runs)
			if have == nil {
				f.port = nil
				continue
			}
			have.refs++
			f.runs = append(f.runs, have)
		}
	}
}

func (r *restorer) run(f *frontend, s span, runs map[span]*run) *run {
	if have := runs[s]; have != nil {
		return have
	}
	if !r.t.store.slots.in(s.first, s.count) {
		return nil
	}
	ids := r.count(s)
	defer func() {
		for _, id := range ids {
			r.shares[id] = 0
		}
	}()
	if !r.plausible(s, ids, f.value.Service) || !r.slots.reserve(s) {
		return nil
	}
	have := &run{span: s, port: f.port, inTurn: f.value.Balance == uint8(bpf.NearlbBalanceBALANCE_ROUND_ROBIN)}
	runs[s] = have
	if f.port != nil && r.members(have, ids) && f.port.run(have.ids, have.shares, have.count, have.inTurn) == nil {
		f.port.runs = append(f.port.runs, have)
		if have.unasked = have.shares != nil; !have.unasked {
			r.found = append(r.found, have)
		}
	}
	return have
}

// count counts the slots of each backend in shares, and gives the ids that have any. Those that cannot be ids are left out.
func (r *restorer) count(s span) (ids []uint32) {
	for i := range s.count {
		id := r.t.store.slots.load(s.first+i, 0)
		if id >= uint32(len(r.shares)) {
			continue
		}
		if r.shares[id] == 0 {
			ids = append(ids, id)
		}
		r.shares[id]++
	}
	return ids
}

// plausible refuses slots most of which name no backend of the service port: a damaged record may name the whole table.
func (r *restorer) plausible(s span, ids []uint32, service uint32) bool {
	known := uint32(0)
	for _, id := range ids {
		if r.t.store.backends.load(id, wordService) == service {
			known += r.shares[id]
		}
	}
	return known > s.count/2
}

// members are the backends of a run that was read. False if one is not the service port's: the run is then found by no tier. That each
// slot is right is found out later (Reclaim); where backends have unequal shares, once a decision asks for just these.
func (r *restorer) members(have *run, ids []uint32) bool {
	backends := r.t.store.backends
	members := make([]member, 0, len(ids))
	total, even := uint32(0), true
	for _, id := range ids {
		row := read[backendRow](backends, id)
		b := have.port.backend(wire(&row))
		share := r.shares[id]
		if b == nil || b.id != id {
			return false
		}
		even = even && share >= have.count/uint32(len(ids)) && share <= have.count/uint32(len(ids))+1
		total += share
		members = append(members, member{where: *wire(&row), id: id})
	}
	have.ids = idsOf(inOrder(members))
	if !even {
		for _, id := range have.ids {
			have.shares = append(have.shares, r.shares[id])
		}
	}
	return total == have.count
}

func (r *restorer) ranges() error {
	for key := range r.t.store.ranges.all() {
		r.t.rangeCount++
		p := r.ports[swap32(key.Service)]
		if p == nil || key.PrefixBits < 32 || key.PrefixBits > 160 {
			r.t.strays.ranges[key] = true
			r.t.strays.services[swap32(key.Service)] = true
			continue
		}
		if p.ranges == nil {
			p.ranges = map[rangeKey]time.Time{}
		}
		p.ranges[key] = time.Time{}
	}
	if err := r.t.store.ranges.err(); err != nil {
		return fmt.Errorf("read table source_ranges: %w", err)
	}
	return nil
}

// numbers tells the registry which ids are taken, those that strays mention too.
func (r *restorer) numbers() {
	for id := range r.t.strays.services {
		if id > 0 && id < r.t.names.limits[servicePortName] {
			r.ids[servicePortName].add(id)
		}
	}
	for key := range r.t.strays.names {
		if used := r.ids[key.Kind]; used != nil && key.Id > 0 && key.Id < r.t.names.limits[key.Kind] {
			used.add(key.Id)
		}
	}
	for kind, used := range r.ids {
		r.t.names.number(kind, used)
	}
}

// staleBits finds the bits of the address filter that nothing restored needs. Connections of removed frontends may need them.
func (r *restorer) staleBits() {
	now := r.t.now()
	for b := range setBits(r.t.store.filter) {
		if r.t.bits.count(b) == 0 {
			r.t.stale[b] = &staleMark{since: now}
		}
	}
}
