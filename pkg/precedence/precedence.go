// SPDX-License-Identifier: Apache-2.0

// Package precedence says which Service has a frontend, or an address, that several ask for. The tables (pkg/maps) publish by this order as
// objects come and go; Problems works the same out at once for objects that were read from files.
package precedence

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Claim is a Service's right to a frontend's address, port and protocol, or to an address alone.
type Claim struct {
	Held    bool // the Service exists no more, as far as is known, or asks for this no more: any other is preferred
	Kind    lb.Kind
	Service lb.ServiceName
	Port    lb.PortKey
}

// Compare orders the claims of one key: the first one has it. Those of Services that exist come first, then kind (lb.Kind.Precedence) and
// names decide, whatever the order of events.
func (c Claim) Compare(o Claim) int {
	if c.Held != o.Held {
		if c.Held {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(c.Kind.Precedence(), o.Kind.Precedence()), c.Service.Compare(o.Service), c.Port.Compare(o.Port))
}

// TakesAddress tells that a frontend claims its address as well, whose other ports are then the Service's to refuse.
func TakesAddress(f *lb.Frontend) bool { return f.Kind != lb.KindNodePort && !f.OnHost }

// Lost is the problem of a Service that asks for a frontend which another has.
func Lost(key lb.FrontendKey, loser, owner Claim) lb.Problem {
	return lb.Problem{
		Object:  loser.Service.Object(),
		Field:   loser.Kind.Field(),
		Message: fmt.Sprintf("%s %s belongs to Service %s (%s); served there until that one goes", loser.Kind, key, owner.Service, owner.Kind),
	}
}

// Captures tells that an external IP which a Service serves is the address of another Service: any Service may name it (CVE-2020-8554).
func Captures(mine, owner Claim) bool {
	return mine.Kind == lb.KindExternalIP && owner.Service != mine.Service && owner.Kind != lb.KindExternalIP
}

// Captured is the problem of the Service that names the external IP.
func Captured(address netip.Addr, mine, owner Claim) lb.Problem {
	return lb.Problem{
		Object: mine.Service.Object(),
		Field:  lb.KindExternalIP.Field(),
		Message: fmt.Sprintf("%v is %s of Service %s: who goes there on this Service's ports is served by it instead (--external-ips=deny refuses that)",
			address, owner.Kind, owner.Service),
	}
}

// Problems are those of Services that ask for what other Services have, in order.
func Problems(decisions []lb.Decision) []lb.Problem {
	frontends, addresses := map[lb.FrontendKey][]Claim{}, map[netip.Addr]Claim{}
	for i := range decisions {
		d := &decisions[i]
		for j := range d.Frontends {
			f := &d.Frontends[j]
			mine, key := Claim{d.Held, f.Kind, d.Service, f.Port.Key()}, keyOf(f)
			frontends[key] = append(frontends[key], mine)
			if !TakesAddress(f) {
				continue
			}
			if first, found := addresses[key.Address.Addr()]; !found || mine.Compare(first) < 0 {
				addresses[key.Address.Addr()] = mine
			}
		}
	}
	found := []lb.Problem{}
	for key, claims := range frontends {
		slices.SortFunc(claims, Claim.Compare)
		owner := claims[0]
		lost := map[lb.ServiceName]bool{owner.Service: true} // a Service asks for a key once
		for _, loser := range claims[1:] {
			if !lost[loser.Service] {
				found = append(found, Lost(key, loser, owner))
			}
			lost[loser.Service] = true
		}
		if of, taken := addresses[key.Address.Addr()]; taken && Captures(owner, of) {
			found = append(found, Captured(key.Address.Addr(), owner, of))
		}
	}
	slices.SortFunc(found, lb.Problem.Compare)
	return found
}

// keyOf is the frontend's key as the tables compare it: an IPv4 address is one, however it is written.
func keyOf(f *lb.Frontend) lb.FrontendKey {
	at := f.Key.Address
	return lb.FrontendKey{Address: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), Protocol: f.Key.Protocol}
}
