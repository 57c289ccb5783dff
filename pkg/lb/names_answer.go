// SPDX-License-Identifier: Apache-2.0

package lb

import "net/netip"

// NameAnswer is what a name has, for those who answer questions for A and AAAA without knowing what names are made of: the programs. Names
// are a tree by labels, from the last label of a name on.
type NameAnswer struct {
	Number   uint32        // that names below it have as parent; 0 is the root's
	Zone     bool          // it is the name of a zone
	Missing  bool          // the name itself does not exist
	AskBelow bool          // whether a name below it exists that is not in the tree is asked of the responder
	A, AAAA  NameAddresses // what the two types of records have
}

// NameAddresses are the addresses of one family that a name has.
type NameAddresses struct {
	Ask   bool           // the responder alone knows
	Tiers [][]netip.Addr // nearest first; the addresses of a tier in any order, none is empty
}

// Len is how many addresses there are.
func (a NameAddresses) Len() (n int) {
	for _, tier := range a.Tiers {
		n += len(tier)
	}
	return n
}

// MostNameAddresses is how many addresses a NameAnswer may have, both families together.
const MostNameAddresses = 8

// NameZones are the numbers that all NameAnswers need beside addresses.
type NameZones struct {
	On                     bool   // all names are in the tree
	Serial                 uint32 // of SOA records, and their times in seconds:
	TTL                    uint32 // of all records, and of what is denied
	Refresh, Retry, Expire uint32
}
