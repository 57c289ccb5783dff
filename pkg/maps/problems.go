// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/precedence"
)

// Problems lists, in order, the frontends that a Service asks for and does not have: another Service has them, or there is no room.
// The list is made again only after one of them came or went. It must not be changed.
func (t *Tables) Problems() []lb.Problem {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.claims
	if !c.dirty {
		return c.found
	}
	found := []lb.Problem{}
	for key, queue := range c.waiting {
		for _, loser := range queue {
			found = append(found, c.lost(key, loser)...)
		}
	}
	for key := range c.external {
		found = append(found, c.capture(key)...)
	}
	for name, err := range t.behind {
		found = append(found, lb.Problem{Object: name.Object(), Message: err.Error()})
	}
	slices.SortFunc(found, lb.Problem.Compare)
	c.found, c.dirty = found, false
	return found
}

// problems are those of one Service.
func (c *claims) problems(s *service) (all []lb.Problem) {
	if s.waits == 0 && len(c.external) == 0 {
		return nil
	}
	for _, key := range s.keys {
		if own, _ := c.of(key, s); c.owner(key) != s {
			all = append(all, c.lost(key, own)...)
		} else if c.external[key] {
			all = append(all, c.capture(key)...)
		}
	}
	slices.SortFunc(all, lb.Problem.Compare)
	return all
}

// lost says who has a frontend that a Service waits for. Of an address alone nothing is said: its ports are.
func (c *claims) lost(key frontendKey, loser claim) []lb.Problem {
	if isAddressKey(key) {
		return nil
	}
	return []lb.Problem{precedence.Lost(nameOf(key), loser.value(), c.owners[key].value())}
}

// capture says whose address an external IP is that is served.
func (c *claims) capture(key frontendKey) []lb.Problem {
	mine, owner := c.owners[key], c.owners[frontendKey{Address: key.Address}]
	if owner.service == nil || !precedence.Captures(mine.value(), owner.value()) {
		return nil
	}
	return []lb.Problem{precedence.Captured(addrOf(key.Address), mine.value(), owner.value())}
}
