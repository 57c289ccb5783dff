// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearlb/nearlb/pkg/lb"
)

// claim is a Service's wish for a frontend key.
type claim struct {
	service  lb.ServiceName
	kind     lb.Kind
	port     lb.PortName
	frontend *lb.Frontend // nil: the address only
}

// compare orders the claims of one key: the first one has it. Kind, then name: whatever the order of events.
func (c claim) compare(o claim) int {
	return cmp.Or(cmp.Compare(c.kind.Precedence(), o.kind.Precedence()), c.service.Compare(o.service), c.port.Compare(o.port))
}

// claims are the wishes of all Services. A key is unique in the tables; who comes second in the order above waits until the
// first goes.
type claims struct {
	byKey     map[frontendKey][]claim // one for each Service, ordered
	byService map[lb.ServiceName]map[frontendKey]claim
}

func newClaims() *claims {
	return &claims{map[frontendKey][]claim{}, map[lb.ServiceName]map[frontendKey]claim{}}
}

// wishes are the claims of one decision, the best one for each key.
func wishes(d *lb.Decision) map[frontendKey]claim {
	all := make(map[frontendKey]claim, len(d.Frontends)+4)
	for i := range d.Frontends {
		f := &d.Frontends[i]
		prefer(all, keyOf(f.Key), claim{d.Service, f.Kind, f.Port, f})
		if f.Kind != lb.KindNodePort {
			prefer(all, addressKey(f.Key.Address.Addr()), claim{d.Service, f.Kind, f.Port, nil})
		}
	}
	return all
}

func prefer(all map[frontendKey]claim, key frontendKey, c claim) {
	if old, found := all[key]; !found || c.compare(old) < 0 {
		all[key] = c
	}
}

// owner is the Service that has the key now.
func (c *claims) owner(key frontendKey) (claim, bool) {
	if all := c.byKey[key]; len(all) > 0 {
		return all[0], true
	}
	return claim{}, false
}

// set replaces the claims of a Service. It gives the Services that come into keys by it: those to publish again.
func (c *claims) set(service lb.ServiceName, wanted map[frontendKey]claim) (heirs []lb.ServiceName) {
	for key := range c.byService[service] {
		if _, still := wanted[key]; still {
			continue
		}
		was := c.byKey[key][0].service
		c.drop(key, service)
		if now, found := c.owner(key); found && was == service {
			heirs = append(heirs, now.service)
		}
	}
	for key, wish := range wanted {
		before, had := c.owner(key)
		c.drop(key, service)
		at, _ := slices.BinarySearchFunc(c.byKey[key], wish, claim.compare)
		c.byKey[key] = slices.Insert(c.byKey[key], at, wish)
		if now := c.byKey[key][0].service; had && before.service == service && now != service {
			heirs = append(heirs, now)
		}
	}
	c.byService[service] = wanted
	if len(wanted) == 0 {
		delete(c.byService, service)
	}
	slices.SortFunc(heirs, lb.ServiceName.Compare)
	return slices.Compact(heirs)
}

func (c *claims) drop(key frontendKey, service lb.ServiceName) {
	rest := slices.DeleteFunc(c.byKey[key], func(o claim) bool { return o.service == service })
	if c.byKey[key] = rest; len(rest) == 0 {
		delete(c.byKey, key)
	}
}

// problems says which frontends of a Service another one has.
func (c *claims) problems(service lb.ServiceName) []lb.Problem {
	var all []lb.Problem
	for key, wish := range c.byService[service] {
		if wish.frontend == nil {
			continue
		}
		owner, _ := c.owner(key)
		if owner.service == service {
			all = append(all, c.capture(wish)...)
			continue
		}
		all = append(all, lb.Problem{
			Object: service.Object(),
			Field:  wish.kind.Field(),
			Message: fmt.Sprintf("%s %s belongs to Service %s (%s); served there until that one goes",
				wish.kind, keyText(key), owner.service, owner.kind),
		})
	}
	slices.SortFunc(all, func(a, b lb.Problem) int { return strings.Compare(a.Message, b.Message) })
	return all
}

// capture says whose address an external IP is that is served: any Service may name it (CVE-2020-8554).
func (c *claims) capture(wish claim) []lb.Problem {
	owner, _ := c.owner(addressKey(wish.frontend.Key.Address.Addr()))
	if wish.kind != lb.KindExternalIP || owner.service == wish.service || owner.kind == lb.KindExternalIP {
		return nil
	}
	return []lb.Problem{{
		Object: wish.service.Object(),
		Field:  wish.kind.Field(),
		Message: fmt.Sprintf("%v is %s of Service %s: who goes there on this Service's ports is served by it instead (--external-ips=deny refuses that)",
			wish.frontend.Key.Address.Addr(), owner.kind, owner.service),
	}}
}
