// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"cmp"
	"slices"
	"unique"
	"unsafe"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/precedence"
)

// claim is a Service's right to a frontend key, in force or waiting.
type claim struct {
	service *service
	port    unique.Handle[lb.PortKey]
	kind    uint8 // as in the records
	held    bool  // the Service exists no more, as far as is known, or asks for the key no more: any other is preferred
}

// value is the claim as pkg/precedence compares it, which says who has a key.
func (c claim) value() precedence.Claim {
	return precedence.Claim{Held: c.held, Kind: kindName(c.kind), Service: c.service.name, Port: c.port.Value()}
}

func (c claim) compare(o claim) int { return c.value().Compare(o.value()) }

// wish is a frontend key that a decision asks for.
type wish struct {
	key      frontendKey
	port     lb.PortKey
	kind     lb.Kind
	frontend *lb.Frontend // nil: the address only
	held     bool         // as of claim
}

func (w *wish) compare(o *wish) int {
	return cmp.Or(compareKeys(w.key, o.key), precedence.Claim{Kind: w.kind, Port: w.port}.Compare(precedence.Claim{Kind: o.kind, Port: o.port}))
}

// compareKeys gives keys an order, whichever.
func compareKeys(a, b frontendKey) int { return bytes.Compare(keyBytes(&a), keyBytes(&b)) }

func keyBytes(k *frontendKey) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(k)), unsafe.Sizeof(*k))
}

// wishes are what one decision asks for: each key once, in order, for the best of its frontends.
func wishes(d *lb.Decision) []wish {
	all := make([]wish, 0, 2*len(d.Frontends))
	for i := range d.Frontends {
		f := &d.Frontends[i]
		all = append(all, wish{keyOf(f.Key), f.Port.Key(), f.Kind, f, d.Held})
		if precedence.TakesAddress(f) {
			all = append(all, wish{addressKey(f.Key.Address.Addr()), f.Port.Key(), f.Kind, nil, d.Held})
		}
	}
	slices.SortStableFunc(all, func(a, b wish) int { return a.compare(&b) })
	return slices.CompactFunc(all, func(a, b wish) bool { return a.key == b.key })
}

// among says whether the key is one of the wishes.
func among(all []wish, key frontendKey) bool {
	_, found := slices.BinarySearchFunc(all, key, func(w wish, key frontendKey) int { return compareKeys(w.key, key) })
	return found
}

// claims are the wishes of all Services. A key is unique in the tables; who comes second in the order above waits until the
// first goes.
type claims struct {
	owners   map[frontendKey]claim
	waiting  map[frontendKey][]claim // ordered; few
	external map[frontendKey]bool    // external IPs with their ports, in force

	found []lb.Problem // as of the last question
	dirty bool         // something changed since
}

func newClaims() *claims {
	return &claims{owners: map[frontendKey]claim{}, waiting: map[frontendKey][]claim{}, external: map[frontendKey]bool{}}
}

// owner is the Service that has the key now; nil when nobody asks for it.
func (c *claims) owner(key frontendKey) *service { return c.owners[key].service }

// set replaces the claims of a Service. It returns the Services that get a frontend by that, which are to be published again.
func (c *claims) set(s *service, wanted []wish) (heirs []*service) {
	for _, key := range s.keys {
		if !among(wanted, key) {
			heirs = appendHeir(heirs, s, c.drop(key, s))
		}
	}
	s.keys = s.keys[:0]
	if len(wanted) > cap(s.keys) {
		s.keys = make([]frontendKey, 0, len(wanted))
	}
	for _, w := range wanted {
		heirs = appendHeir(heirs, s, c.put(w.key, claim{s, unique.Make(w.port), kindOf(w.kind), w.held}))
		s.keys = append(s.keys, w.key)
	}
	if len(wanted) == 0 {
		s.keys = nil
	}
	slices.SortFunc(heirs, func(a, b *service) int { return a.name.Compare(b.name) })
	return slices.Compact(heirs)
}

func appendHeir(heirs []*service, s, heir *service) []*service {
	if heir == nil || heir == s {
		return heirs
	}
	return append(heirs, heir)
}

// all are the claims of a Service, in order.
func (c *claims) all(s *service) []wish {
	all := make([]wish, 0, len(s.keys))
	for _, key := range s.keys {
		if own, found := c.of(key, s); found {
			all = append(all, wish{key: key, port: own.port.Value(), kind: kindName(own.kind), held: own.held})
		}
	}
	slices.SortFunc(all, func(a, b wish) int { return compareKeys(a.key, b.key) })
	return all
}

// of is the Service's own claim of a key.
func (c *claims) of(key frontendKey, s *service) (claim, bool) {
	if own := c.owners[key]; own.service == s {
		return own, true
	}
	for _, own := range c.waiting[key] {
		if own.service == s {
			return own, true
		}
	}
	return claim{}, false
}

// put enters or replaces a Service's claim. It returns the other Service that gets the key by that; nil if there is none.
func (c *claims) put(key frontendKey, mine claim) (heir *service) {
	before := c.owners[key]
	if before == mine {
		return nil
	}
	if before.service == mine.service {
		if queue := c.waiting[key]; len(queue) > 0 && queue[0].compare(mine) < 0 {
			heir = c.drop(key, mine.service)
			c.wait(key, mine)
			return heir
		}
		c.own(key, mine)
		return nil
	}
	c.leave(key, mine.service)
	if before.service != nil && before.compare(mine) < 0 {
		c.wait(key, mine)
		return nil
	}
	if before.service != nil {
		c.wait(key, before)
	}
	c.own(key, mine)
	return nil
}

// drop removes a Service's claim, and returns the Service that gets the key by that.
func (c *claims) drop(key frontendKey, s *service) (heir *service) {
	if c.owners[key].service != s {
		c.leave(key, s)
		return nil
	}
	queue := c.waiting[key]
	if len(queue) == 0 {
		c.own(key, claim{})
		return nil
	}
	first := queue[0]
	c.leave(key, first.service)
	c.own(key, first)
	return first.service
}

// own notes which claim of a key is in force; the zero claim: none.
func (c *claims) own(key frontendKey, first claim) {
	external := first.service != nil && first.kind == kindOf(lb.KindExternalIP) && !isAddressKey(key)
	c.dirty = c.dirty || external || c.external[key] || len(c.waiting[key]) > 0 || isAddressKey(key) && len(c.external) > 0
	if external {
		c.external[key] = true
	} else {
		delete(c.external, key)
	}
	if first.service == nil {
		delete(c.owners, key)
		return
	}
	c.owners[key] = first
}

// wait puts a claim into the queue of a key.
func (c *claims) wait(key frontendKey, other claim) {
	queue := c.waiting[key]
	at, _ := slices.BinarySearchFunc(queue, other, claim.compare)
	c.waiting[key] = slices.Insert(queue, at, other)
	other.service.waits++
	c.dirty = true
}

// leave takes a Service out of the queue of a key.
func (c *claims) leave(key frontendKey, s *service) {
	queue := c.waiting[key]
	at := slices.IndexFunc(queue, func(o claim) bool { return o.service == s })
	if at < 0 {
		return
	}
	if c.waiting[key] = slices.Delete(queue, at, at+1); len(c.waiting[key]) == 0 {
		delete(c.waiting, key)
	}
	s.waits--
	c.dirty = true
}
