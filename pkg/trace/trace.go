// SPDX-License-Identifier: Apache-2.0

// Package trace asks the real BPF programs what they would do with a packet: it makes the packet, runs the program in the
// kernel over it (BPF_PROG_TEST_RUN) and reads the answer from the program's trace map and from the packet that came out.
// Frontends and backends are the live ones or private ones made from objects; flows, affinity, fragments and
// counters are always private, so that nothing a user sees changes.
package trace

import (
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Door says where the packet comes from.
type Door string

// The doors of contracts.md. FromPod alone has a program so far.
const (
	FromPod     Door = "pod"
	FromHost    Door = "host"
	FromNetwork Door = "network"
)

// Request is one question: what happens to the first packet of a connection.
type Request struct {
	ID       string
	From     Door
	Source   netip.AddrPort // port 0: any; the packets then come from successive ports
	To       netip.AddrPort
	Protocol lb.Protocol
	Count    int // packets, each from another source port; 0 is 1
}

// Answer is the contract's answer to a Request.
type Answer struct {
	ID       string      `json:"id,omitempty"`
	Verdict  string      `json:"verdict"`           // translate, pass, reject or drop
	Reason   string      `json:"reason"`            // the verdict's name in the BPF code, without its class
	Service  string      `json:"service,omitempty"` // "namespace/name"; absent when no service matched
	Port     *string     `json:"port,omitempty"`    // name of the service's port, which may be empty
	Backends []Backend   `json:"backends"`          // by address
	SNAT     bool        `json:"snat"`              // whether the client's address is replaced
	Source   *netip.Addr `json:"source,omitempty"`  // the address that the backend will see
}

// Backend is one backend that got packets of a Request, and how many.
type Backend struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Tier    string     `json:"tier"` // how near it is: node, zone, region or cluster
	Count   int        `json:"count"`
}
