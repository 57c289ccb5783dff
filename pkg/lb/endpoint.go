// SPDX-License-Identifier: Apache-2.0

package lb

import (
	"net/netip"
	"unique"
)

// SliceEndpoint is one address of an EndpointSlice, for all of its ports. A cluster has some 100,000, which packets and names share, so it
// is kept in 32 bytes.
type SliceEndpoint struct {
	Address [16]byte // IPv4 as ::ffff:a.b.c.d; all zero: the endpoint has a name instead (NamedSlice.Target)
	At      unique.Handle[Place]
	Is      Conditions
}

// Addr is the address, IPv4 as such; the zero Addr where there is none.
func (e SliceEndpoint) Addr() netip.Addr {
	if e.Address == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(e.Address).Unmap()
}

// Place is what a slice says of where an endpoint is, and for whom it is. Endpoints of a Node share one.
type Place struct {
	Node, Zone, Region   string // "" unknown
	NodeHints, ZoneHints string // names as package watch joins them; "": none
}

// Conditions are what a slice says of an endpoint's state, and whether it is a Pod.
type Conditions uint8

// The conditions: those of the API with their defaults, and whether targetRef names a Pod or another object.
const (
	IsReady Conditions = 1 << iota
	IsServing
	IsTerminating
	HasTarget
)
