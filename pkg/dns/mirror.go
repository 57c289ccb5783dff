// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	wire "github.com/miekg/dns"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Answers is where a View writes its names for those who answer A and AAAA questions without it, the programs: a tree by labels. It must not
// call the View.
type Answers interface {
	Configure(lb.NameZones) error
	Clear() error
	Room() int // for how many names
	// Put writes what a name has, and tells whether it is new.
	Put(parent uint32, label string, n lb.NameAnswer) (added bool, err error)
	// Remove tells whether there was such a name.
	Remove(parent uint32, label string) (removed bool, err error)
}

// Mirror has the view write its names to a table as well, in the place of the one before: whatever of the view changes is in the table when
// the method that changes it returns. It answers as r would. What cannot be written is answered by nobody but r from then on, as failed is
// told; so it is until the view is mirrored anew.
func (v *View) Mirror(r *Responder, to Answers, failed func(error)) {
	cleared := v.endMirror(r, to)
	m := v.beginMirror(r, to, failed, cleared)
	for part := range slices.Chunk(v.unwritten(), mirroredAtOnce) {
		v.mirrorPart(m, part)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mirror == m {
		m.complete = true
		m.configure()
	}
}

// mirroredAtOnce is how many Services are written while nobody reads the view: all of them may take a second, for which clients would wait.
const mirroredAtOnce = 32

// endMirror has nobody write, and nothing answered by the table that it clears: which takes its time, so the view is not locked for that.
func (v *View) endMirror(r *Responder, to Answers) error {
	v.mu.Lock()
	v.mirror = nil
	serial := v.serial
	v.mu.Unlock()
	return errors.Join(to.Configure(lb.NameZones{Serial: serial, TTL: r.options.TTL}), to.Clear())
}

// beginMirror writes what names of Services are below. It is told whether the table could be cleared.
func (v *View) beginMirror(r *Responder, to Answers, failed func(error), cleared error) *mirror {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := &mirror{view: v, responder: r, to: to, failed: failed, next: firstNumber, namespaces: map[string]uint32{}, services: map[lb.ServiceName]mirrored{}}
	v.mirror = m
	m.configure()
	m.try(cleared)
	m.zones()
	for name := range v.namespaces {
		m.namespace(name)
	}
	return m
}

// unwritten are the Services that a new mirror has to write. One that changes from now on writes itself.
func (v *View) unwritten() []lb.ServiceName {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return slices.AppendSeq(slices.Collect(maps.Keys(v.services)), maps.Keys(v.doubtful))
}

// mirrorPart writes some Services that no change has written yet.
func (v *View) mirrorPart(m *mirror, part []lb.ServiceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, name := range part {
		if _, written := m.services[name]; !written && v.mirror == m {
			m.service(name, nil, v.services[name], false)
		}
	}
}

// Mirrored is what is in the table that a View writes its names to.
type Mirrored struct {
	Names   int   `json:"names"`   // of any kind
	NoRoom  int   `json:"no_room"` // names of endpoints that the table has no room for: who asks for them asks a responder
	Whole   bool  `json:"whole"`   // all that the view was told of is in the table, which nothing is answered by before
	Failure error `json:"-"`       // after which nothing is answered by the table
}

// Mirrored is of the table that Mirror named last.
func (v *View) Mirrored() Mirrored {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.mirror == nil {
		return Mirrored{}
	}
	return Mirrored{Names: v.mirror.written, NoRoom: v.mirror.wanted - v.mirror.leaves, Whole: v.mirror.configured.On, Failure: v.mirror.failure}
}

// The numbers of names that are in every tree, and of those that have none below.
const (
	rootNumber = iota
	zoneNumber // all zones have the same names below
	serviceNumber
	podNumber
	firstNumber
	leafNumber = math.MaxUint32
)

// mirror writes a view into a table. The view's lock is held for all of its methods. A nil one does nothing.
type mirror struct {
	view      *View
	responder *Responder
	to        Answers
	failed    func(error)

	failure    error // nil: it is whole
	complete   bool  // all that the view has is written
	configured lb.NameZones
	next       uint32 // number
	namespaces map[string]uint32
	services   map[lb.ServiceName]mirrored
	written    int // names in the table
	leaves     int // of those, names of endpoints: they leave half of the room to Services
	wanted     int // names of endpoints that there are
}

// mirrored is where a Service's name is in the table.
type mirrored struct{ parent, number uint32 }

// off tells that something is not as it should be: the table answers nothing.
func (m *mirror) off() bool { return m.failure != nil }

// try ends the mirror where an error says that something is not in the table that should be, or the other way round.
func (m *mirror) try(err error) {
	if err == nil || m.off() {
		return
	}
	m.failure = err
	m.failed(err)
	m.configure()
}

// configure writes what all answers need, if it is other than before.
func (m *mirror) configure() {
	if m == nil {
		return
	}
	now := lb.NameZones{On: m.complete && m.view.synced && !m.off(), Serial: m.view.serial, TTL: m.responder.options.TTL,
		Refresh: soaRefresh, Retry: soaRetry, Expire: soaExpire}
	if now == m.configured {
		return
	}
	m.configured = now
	if err := m.to.Configure(now); err != nil && !m.off() {
		m.failure = fmt.Errorf("write the numbers of answers: %w", err)
		m.failed(m.failure)
	}
}

func (m *mirror) put(parent uint32, label string, n lb.NameAnswer) {
	if m.off() {
		return
	}
	added, err := m.to.Put(parent, label, n)
	if added {
		m.written++
	}
	m.try(err)
}

func (m *mirror) remove(parent uint32, label string) {
	if m.off() {
		return
	}
	removed, err := m.to.Remove(parent, label)
	if removed {
		m.written--
	}
	m.try(err)
}

func (m *mirror) newNumber() uint32 {
	m.next++
	return m.next - 1
}

// asked is a name of which the responder alone knows anything.
func asked(number uint32) lb.NameAnswer {
	return lb.NameAnswer{Number: number, AskBelow: true, A: lb.NameAddresses{Ask: true}, AAAA: lb.NameAddresses{Ask: true}}
}

// longestZone is how many bytes a zone may have: a SOA record has longer names.
const longestZone = 200

// zones writes the names that need no object. What is above a zone is nobody's here.
func (m *mirror) zones() {
	above := map[string]uint32{".": rootNumber}
	all := m.responder.options.Zones
	for _, zone := range all {
		if len(zone) > longestZone || slices.ContainsFunc(all, func(o string) bool { return o != zone && wire.IsSubDomain(o, zone) }) {
			m.try(fmt.Errorf("zone %s is too long, or within another one", zone))
			return
		}
		labels := wire.SplitDomainName(zone)
		if !slices.ContainsFunc(labels, func(label string) bool { return !isPlain(label) }) {
			m.zone(labels, above)
			continue
		}
		m.try(fmt.Errorf("zone %s has other bytes than letters, digits and dashes", zone))
	}
	m.put(zoneNumber, labelService, lb.NameAnswer{Number: serviceNumber})
	m.put(zoneNumber, labelPod, lb.NameAnswer{Number: podNumber})
	m.put(zoneNumber, labelVersion, asked(leafNumber))
	m.put(zoneNumber, "dns", asked(leafNumber)) // ns.dns is below it
}

func (m *mirror) zone(labels []string, above map[string]uint32) {
	parent := uint32(rootNumber)
	for i := len(labels) - 1; i > 0; i-- {
		name := strings.Join(labels[i:], ".")
		number, known := above[name]
		if !known {
			number = m.newNumber()
			above[name] = number
			m.put(parent, labels[i], asked(number))
		}
		parent = number
	}
	m.put(parent, labels[0], lb.NameAnswer{Number: zoneNumber, Zone: true})
}

// isPlain tells whether a label is one that names of objects have, in small letters: nobody writes it in another way.
func isPlain(label string) bool {
	return label != "" && len(label) <= 63 && strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// errOdd is of a name of an object that no API server has.
var errOdd = errors.New("a name has other bytes than letters, digits and dashes")

// namespace writes that a Namespace exists, or that it does not.
func (m *mirror) namespace(name string) {
	if m == nil {
		return
	}
	_, written := m.namespaces[name]
	exists, pods := m.view.namespaces[name] != nil, m.responder.options.Pods != PodsDisabled
	switch {
	case exists == written:
	case exists && !isPlain(name):
		m.try(fmt.Errorf("namespace %q: %w", name, errOdd))
	case exists:
		number := m.newNumber()
		m.namespaces[name] = number
		m.put(serviceNumber, name, lb.NameAnswer{Number: number})
		if pods {
			m.put(podNumber, name, lb.NameAnswer{Number: leafNumber, AskBelow: true})
		}
	default:
		delete(m.namespaces, name)
		if m.remove(serviceNumber, name); pods {
			m.remove(podNumber, name)
		}
	}
}

// service writes the names of a Service and of its endpoints in the place of those that it had; nil entries: it has none. The view has what
// it will have. all: also the names of endpoints that have what they had.
func (m *mirror) service(name lb.ServiceName, old, now *entry, all bool) {
	if m == nil || m.off() {
		return
	}
	if now != nil && now.service.Unserved {
		now = nil
	}
	if now == nil && !m.view.doubtful[name] {
		m.removeService(name, old)
		return
	}
	if !isPlain(name.Name) {
		m.try(fmt.Errorf("service %q: %w", name, errOdd))
		return
	}
	at, known := m.services[name]
	if !known {
		at, old = mirrored{m.namespaces[name.Namespace], m.newNumber()}, nil // whatever it had is not written
		m.services[name] = at
	}
	m.endpoints(at.number, old, now, all)
	m.put(at.parent, name.Name, m.answer(name, at.number))
}

func (m *mirror) removeService(name lb.ServiceName, old *entry) {
	at, known := m.services[name]
	if !known {
		return
	}
	delete(m.services, name)
	m.remove(at.parent, name.Name)
	m.endpoints(at.number, old, nil, false)
}

// answer is what the name of a Service has. Below it are names of endpoints, and others that are made of what is asked for.
func (m *mirror) answer(name lb.ServiceName, number uint32) lb.NameAnswer {
	found := m.responder.find([]string{name.Name, name.Namespace, labelService})
	if found.doubt || found.alias != "" {
		return asked(number)
	}
	n := answerWith(found.candidates, found.ordered)
	n.Number, n.AskBelow, n.Missing = number, true, !found.exists
	return n
}

// endpoints writes the names of endpoints of which something changed. What has no room is asked of the responder.
func (m *mirror) endpoints(parent uint32, old, now *entry, all bool) {
	before, after := m.namesOf(old), m.namesOf(now)
	m.wanted += len(after) - len(before)
	for label := range before {
		if _, stays := after[label]; !stays && !m.off() {
			m.removeLeaf(parent, label)
		}
	}
	for label, n := range after {
		if was, there := before[label]; m.off() || there && !all && reflect.DeepEqual(was, n) {
			continue
		}
		m.putLeaf(parent, label, n)
	}
}

// places writes all names whose order depends on where this node is.
func (m *mirror) places() {
	if m == nil {
		return
	}
	for name, e := range m.view.services {
		if e.service.Selection != lb.NamesShuffled {
			m.service(name, e, e, true)
		}
	}
}

func (m *mirror) putLeaf(parent uint32, label string, n lb.NameAnswer) {
	if m.leaves >= m.to.Room()/2 {
		m.removeLeaf(parent, label)
		return
	}
	added, err := m.to.Put(parent, label, n)
	if added {
		m.leaves, m.written = m.leaves+1, m.written+1
	}
	if err != nil {
		m.removeLeaf(parent, label)
	}
}

func (m *mirror) removeLeaf(parent uint32, label string) {
	removed, err := m.to.Remove(parent, label)
	if removed {
		m.leaves, m.written = m.leaves-1, m.written-1
	}
	m.try(err)
}

// namesOf are the names of a Service's endpoints, and what they have.
func (m *mirror) namesOf(e *entry) map[string]lb.NameAnswer {
	all := map[string]lb.NameAnswer{}
	if e == nil || e.service.Unserved || e.service.ExternalName != "" {
		return all
	}
	found := map[string][]candidate{}
	for _, c := range e.backends(m.view.options.Node, choice{}) {
		if label := strings.ToLower(c.host()); isPlain(label) {
			found[label] = append(found[label], c)
		}
	}
	for label, candidates := range found {
		n := answerWith(candidates, e.service.Selection != lb.NamesShuffled)
		n.Number, n.AskBelow = leafNumber, true
		all[label] = n
	}
	return all
}

// answerWith has the addresses of candidates, as far as they are few; one that has a name instead is the responder's to follow.
func answerWith(all []candidate, ordered bool) (n lb.NameAnswer) {
	told := map[netip.Addr]bool{}
	last := map[*lb.NameAddresses]nearness{}
	for _, c := range all {
		if !c.address.IsValid() {
			return lb.NameAnswer{A: lb.NameAddresses{Ask: true}, AAAA: lb.NameAddresses{Ask: true}}
		}
		if told[c.address] {
			continue
		}
		told[c.address] = true
		of := &n.A
		if !c.address.Is4() {
			of = &n.AAAA
		}
		if len(of.Tiers) == 0 || ordered && c.near != last[of] {
			of.Tiers = append(of.Tiers, nil)
		}
		tier := &of.Tiers[len(of.Tiers)-1]
		*tier, last[of] = append(*tier, c.address), c.near
	}
	if n.A.Len() > lb.MostNameAddresses {
		n.A = lb.NameAddresses{Ask: true}
	}
	if n.A.Len()+n.AAAA.Len() > lb.MostNameAddresses {
		n.AAAA = lb.NameAddresses{Ask: true}
	}
	return n
}
