// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// FrontendRow is one frontend as the kernel's tables have it; field names are those of `nearlb plan` (contracts.md).
type FrontendRow struct {
	Service         string          `json:"service"` // "namespace/name"
	Port            string          `json:"port"`    // the port's name, may be empty
	Protocol        string          `json:"protocol"`
	Kind            string          `json:"kind"` // ClusterIP, NodePort, ExternalIP, LoadBalancer
	Address         netip.Addr      `json:"address"`
	FrontendPort    uint16          `json:"frontendPort"`
	Internal        SideRow         `json:"internal"`
	External        SideRow         `json:"external"`
	OffNode         *WayRow         `json:"offNode,omitempty"` // nil: no backend is on another node
	AffinitySeconds uint32          `json:"affinitySeconds"`
	SourceRanges    []string        `json:"sourceRanges"`
	Connections     uint64          `json:"connections"`           // of the service port, over all its frontends
	Rejected        uint64          `json:"rejected"`              // packets, likewise
	Dropped         uint64          `json:"dropped"`               // packets, likewise
	Open            uint64          `json:"open"`                  // connections of this frontend that have not ended
	Annotations     []lb.Annotation `json:"annotations,omitempty"` // nearlb's, where an agent was asked: the tables do not have them
	Repeats         bool            `json:"-"`                     // an earlier row has the service port's counters: tables show them there
	PortRates
}

// WayRow is how clients off the node get to backends on other nodes. A node that is not known is named by its backend's address.
type WayRow struct {
	Way   string   `json:"way"`             // snat, carry or dsr, the latter two to all but these nodes:
	SNAT  []string `json:"snat"`            // they take no packets of the family out of the tunnel
	Carry []string `json:"carry"`           // of dsr: they cannot answer clients themselves
	Lacks string   `json:"lacks,omitempty"` // of snat: carry or dsr is asked for, and this agent has no tunnel
}

// PortRates are what the counters of a service port gained a second, where somebody watches; nil: nobody does.
type PortRates struct {
	NewPerSecond      *float64 `json:"newPerSecond,omitempty"`
	RejectedPerSecond *float64 `json:"rejectedPerSecond,omitempty"`
	DroppedPerSecond  *float64 `json:"droppedPerSecond,omitempty"`
}

// BackendRates are those of a backend, likewise.
type BackendRates struct {
	NewPerSecond       *float64 `json:"newPerSecond,omitempty"`
	BytesToPerSecond   *float64 `json:"bytesToPerSecond,omitempty"`
	BytesFromPerSecond *float64 `json:"bytesFromPerSecond,omitempty"`
}

// VerdictRates are those of a verdict, likewise.
type VerdictRates struct {
	PacketsPerSecond *float64 `json:"packetsPerSecond,omitempty"`
	BytesPerSecond   *float64 `json:"bytesPerSecond,omitempty"`
}

// SideRow is the answer for one policy side of a frontend.
type SideRow struct {
	Action string    `json:"action"` // balance, reject, drop
	Reason string    `json:"reason"`
	Note   string    `json:"note,omitempty"` // why no preference is in force that was asked for
	Tiers  []TierRow `json:"tiers"`
}

// TierRow is one tier of a side.
type TierRow struct {
	Tier     string           `json:"tier"`
	Slots    uint32           `json:"slots,omitempty"` // size of its Maglev table
	Backends []TierBackendRow `json:"backends"`
}

// TierBackendRow is a backend where a tier lists it.
type TierBackendRow struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Node    string     `json:"node"`
	Zone    string     `json:"zone"`
	State   string     `json:"state"`
}

// AddressRow is an address that belongs to a service, whatever the port.
type AddressRow struct {
	Address netip.Addr `json:"address"`
	Kind    string     `json:"kind"`
	Service string     `json:"service"`
}

// BackendRow is one endpoint of a service port, in a tier or not.
type BackendRow struct {
	Service     string     `json:"service"`
	Port        string     `json:"port"` // the service port's name
	Protocol    string     `json:"protocol"`
	Address     netip.Addr `json:"address"`
	BackendPort uint16     `json:"backendPort"`
	Node        string     `json:"node"`
	Zone        string     `json:"zone"`
	Tier        string     `json:"tier"`  // how near it is to this node
	State       string     `json:"state"` // active, draining, quiet, gone
	Lists       []string   `json:"lists"` // cluster, local
	ID          uint32     `json:"id"`
	Generation  uint16     `json:"generation"`

	EjectedSince   string `json:"ejectedSince,omitempty"`   // RFC 3339; "": new connections do not leave it out
	EjectedUntil   string `json:"ejectedUntil,omitempty"`   // likewise; one connection at a time tries it from then on
	EjectedBecause string `json:"ejectedBecause,omitempty"` // "no answer to 3 connections of several clients, nor to this node"

	Connections uint64  `json:"connections"`
	PacketsTo   uint64  `json:"packetsTo"`
	BytesTo     uint64  `json:"bytesTo"`
	PacketsFrom uint64  `json:"packetsFrom"`
	BytesFrom   uint64  `json:"bytesFrom"`
	Open        uint64  `json:"open"`                 // connections that have not ended
	Refused     uint64  `json:"refused"`              // TCP connections of late that it refused: those that the flow table remembers
	Unanswered  uint64  `json:"unanswered"`           // likewise, that had no answer for ten seconds
	OpenOthers  *uint32 `json:"openOthers,omitempty"` // connections that other nodes have, as their agents tell where a Service balances by connections; left out: not known

	SYN              *SYNTimes `json:"-"`                          // nil: none
	SYN50            *float64  `json:"synP50Us,omitempty"`         // microseconds that half of its answered SYNs took at the most, since it came
	SYN99            *float64  `json:"synP99Us,omitempty"`         // likewise 99 of 100
	LastReplySeconds *int64    `json:"lastReplySeconds,omitempty"` // since it first answered a connection of anybody here; left out: never
	Share            *float64  `json:"share,omitempty"`            // of the new connections of this node's clients that come to its tier; left out: no tier has it
	Less             bool      `json:"-"`                          // than others of its tier: tables show shares
	BackendRates
}

// FlowRow is one entry of the flow table: a connection, seen from its client.
type FlowRow struct {
	Service      string     `json:"service"` // "" for a direct connection
	Port         string     `json:"port"`
	Protocol     string     `json:"protocol"`
	Client       netip.Addr `json:"client"`
	ClientPort   uint16     `json:"clientPort"`
	Frontend     netip.Addr `json:"frontend"`
	FrontendPort uint16     `json:"frontendPort"`
	Backend      netip.Addr `json:"backend"`
	BackendPort  uint16     `json:"backendPort"`
	BackendState string     `json:"backendState"` // "stale": its id serves another endpoint now
	Source       netip.Addr `json:"source"`       // the address that the backend sees
	SourcePort   uint16     `json:"sourcePort"`   // the port that the backend sees
	Flags        []string   `json:"flags"`        // alias, direct, hairpin, snat
	State        string     `json:"state"`        // new, answered, open, closing, closed, reset, expired: FlowStates
	Seen         []string   `json:"seen"`         // reply, client-fin, server-fin, reset, established, refused ...
	IdleSeconds  int64      `json:"idleSeconds"`
	AgeSeconds   *int64     `json:"ageSeconds,omitempty"` // since the entry was made; nil: not known
	Expired      bool       `json:"expired"`              // free to be overwritten
	Node         string     `json:"node"`                 // the backend's
	Zone         string     `json:"zone"`                 // the backend's

	// Bytes of packets while somebody asks for them (Reader.CountedFlows); nil: not asked for, or not counted.
	BytesSent     *uint64 `json:"bytesSent,omitempty"`     // by the client
	BytesReceived *uint64 `json:"bytesReceived,omitempty"` // by the client
}

// AffinityRow is one client that session affinity remembers.
type AffinityRow struct {
	Service     string     `json:"service"`
	Port        string     `json:"port"`
	Protocol    string     `json:"protocol"`
	Client      netip.Addr `json:"client"`
	Backend     netip.Addr `json:"backend"`
	BackendPort uint16     `json:"backendPort"`
	State       string     `json:"state"` // of the backend; "stale": its id serves another endpoint now
	IdleSeconds int64      `json:"idleSeconds"`
}

// VerdictRow counts the packets of one hook that met one fate.
type VerdictRow struct {
	Hook    string `json:"hook"`    // from_pod, to_pod ...
	Verdict string `json:"verdict"` // pass, translate, reject, drop
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
	VerdictRates
}

// FillRow says how full a table is.
type FillRow struct {
	Table string `json:"table"`
	Used  uint64 `json:"used"`
	Limit uint64 `json:"limit"`
}
