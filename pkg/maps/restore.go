// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

// strays are entries that make no sense or that no service port owns. They stay as they are, and their ids taken, until
// Audit repairs.
type strays struct {
	backends map[uint32]*backend
	ranges   map[rangeKey]bool
	names    map[nameKey]string
	services map[uint32]bool // ids of service ports without a name that entries mention
}

// open builds the mirror of what the tables hold.
func open(s *store) (*Tables, error) {
	for name, a := range map[string]*array{"records": s.records, "slots": s.slots, "backends": s.backends, "flows": s.flows,
		"address_filter": s.filter, "config": s.settings} {
		if err := a.check(name); err != nil {
			return nil, err
		}
	}
	t := &Tables{
		store: s, now: time.Now, tableSize: decide.TableSize, services: map[lb.ServiceName]*service{}, claims: newClaims(),
		frontends: map[frontendKey]*frontend{}, behind: map[lb.ServiceName]error{}, names: newRegistry(s.sizes),
		slots: newSpans(s.sizes.Slots), gone: map[uint32]*backend{}, bits: map[filterBit]int{}, stale: map[filterBit]*staleMark{},
		strays: strays{map[uint32]*backend{}, map[rangeKey]bool{}, map[nameKey]string{}, map[uint32]bool{}},
	}
	r := &restorer{t: t, ports: map[uint32]*port{}, named: map[nameKey]*named{}}
	for _, step := range []func() error{r.names, r.backends, r.frontends, r.ranges} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("restore tables: %w", err)
		}
	}
	r.numbers()
	r.staleBits()
	t.sources = restoreSources(t.store.settings, t.now())
	return t, t.defaults()
}

// restorer reads the live tables into a mirror.
type restorer struct {
	t     *Tables
	ports map[uint32]*port // by id
	named map[nameKey]*named
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
	limit, known := r.t.names.limits[key.Kind]
	if !known || key.Id == 0 || key.Id >= limit || text == "" || r.t.names.byText[key.Kind][text] != nil {
		return false
	}
	n := &named{kind: key.Kind, id: key.Id, text: text}
	if key.Kind == servicePortName {
		name, err := parsePortName(text)
		if err != nil || name.String() != text {
			return false
		}
		s := r.t.services[name.Service]
		if s == nil {
			s = &service{name: name.Service, ports: map[lb.PortName]*port{}}
			r.t.services[name.Service] = s
		}
		s.ports[name] = newPort(name, s, n)
		r.ports[key.Id] = s.ports[name]
	}
	r.named[key] = n
	r.t.names.add(n)
	return true
}

// backends takes every used id, to its service port where there is one.
func (r *restorer) backends() error {
	t := r.t
	taken := map[uint32]bool{}
	for id := uint32(1); id < t.store.backends.size; id++ {
		if uint8(t.store.backends.load(id, wordState)>>16) == stateFree {
			continue
		}
		taken[id] = true
		b := &backend{id: id, value: read[backendRow](t.store.backends, id), port: r.ports[t.store.backends.load(id, wordService)]}
		t.bits[backendBit(AddrPortOf(b.value))]++ // a stray's connections need their replies translated, too
		if b.port == nil || b.value.State > stateGone || b.port.backends[b.endpoint()] != nil {
			b.port = nil
			t.strays.backends[id] = b
			t.strays.services[b.value.Service] = true
			continue
		}
		r.backend(b)
	}
	t.backendIDs = newIDs(1, t.store.sizes.Backends, taken)
	return nil
}

func (r *restorer) backend(b *backend) {
	t := r.t
	b.port.backends[b.endpoint()] = b
	b.node, b.value.Node = r.place(nodeName, b.value.Node)
	b.zone, b.value.Zone = r.place(zoneName, b.value.Zone)
	if b.value.State == stateGone {
		b.since = t.now()
		t.gone[b.id] = b
	}
}

// place counts a backend to its node's or zone's name. An id without one is unknown, so that the next decision writes it.
func (r *restorer) place(kind uint32, id uint16) (*named, uint16) {
	n := r.named[nameKey{Kind: kind, Id: uint32(id)}]
	if n != nil {
		n.refs++
	}
	return n, n.number()
}

// frontends takes every entry with its record and slots. An entry whose record is not its own is a stray with a record that
// no service port owns.
func (r *restorer) frontends() error {
	t := r.t
	taken := map[uint32]bool{}
	runs := map[span]*run{}
	for key, number := range t.store.frontends.all() {
		f := &frontend{key: key, record: number}
		if number > 0 && number < t.store.records.size && !taken[number] {
			taken[number] = true
			f.value = read[recordValue](t.store.records, number)
		} else {
			f.record = 0
		}
		t.frontends[key] = f
		t.bits[f.bit()]++
		if f.value.Key == key {
			f.port = r.ports[f.value.Service]
		}
		if f.port == nil {
			t.strays.services[f.value.Service] = true
		}
		r.tiers(f, runs)
		if f.port != nil {
			f.port.frontends[key] = f
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
	owner := f.port.service.name
	wanted := r.t.claims.byService[owner]
	if wanted == nil {
		wanted = map[frontendKey]claim{}
		r.t.claims.byService[owner] = wanted
	}
	wanted[f.key] = claim{service: owner, kind: kindName(f.value.Kind), port: f.port.name}
	r.t.claims.byKey[f.key] = []claim{wanted[f.key]}
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
	if !r.t.store.slots.in(s.first, s.count) || !r.plausible(s, f.value.Service) || !r.t.slots.reserve(s) {
		return nil
	}
	have := &run{span: s, port: f.port}
	runs[s] = have
	if f.port != nil && r.members(have) && f.port.runs[have.key] == nil {
		f.port.runs[have.key] = have
	}
	return have
}

// plausible refuses slots most of which name no backend of the service port: a damaged record may name the whole table.
func (r *restorer) plausible(s span, service uint32) bool {
	backends := r.t.store.backends
	known := uint32(0)
	for i := range s.count {
		id := r.t.store.slots.load(s.first+i, 0)
		if id < backends.size && backends.load(id, wordService) == service {
			known++
		}
	}
	return known > s.count/2
}

// members reads a run's backends from its slots. False if one is not the service port's: the run is then found by no tier.
func (r *restorer) members(have *run) bool {
	byID := map[uint32]*backend{}
	for _, b := range have.port.backends {
		byID[b.id] = b
	}
	seen := map[uint32]bool{}
	var members []*backend
	for i := range have.count {
		id := r.t.store.slots.load(have.first+i, 0)
		if seen[id] {
			continue
		}
		b := byID[id]
		if b == nil {
			return false
		}
		seen[id] = true
		members = append(members, b)
	}
	have.ids = idsOf(inOrder(members))
	have.key = runKey(have.ids)
	return true
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
		p.ranges[key] = time.Time{}
	}
	if err := r.t.store.ranges.err(); err != nil {
		return fmt.Errorf("read table source_ranges: %w", err)
	}
	return nil
}

// numbers tells the registry which ids are taken, those that strays mention too.
func (r *restorer) numbers() {
	taken := map[uint32]map[uint32]bool{servicePortName: {}, nodeName: {}, zoneName: {}}
	for key := range r.named {
		taken[key.Kind][key.Id] = true
	}
	for id := range r.t.strays.services {
		if id > 0 && id < r.t.names.limits[servicePortName] {
			taken[servicePortName][id] = true
		}
	}
	for key := range r.t.strays.names {
		if used := taken[key.Kind]; used != nil && key.Id > 0 && key.Id < r.t.names.limits[key.Kind] {
			used[key.Id] = true
		}
	}
	for kind, used := range taken {
		r.t.names.number(kind, used)
	}
}

// staleBits finds the bits of the address filter that nothing restored needs: connections of removed frontends may.
func (r *restorer) staleBits() {
	now := r.t.now()
	for b := range setBits(r.t.store.filter) {
		if r.t.bits[b] == 0 {
			r.t.stale[b] = &staleMark{since: now}
		}
	}
}
