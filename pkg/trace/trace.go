// SPDX-License-Identifier: Apache-2.0

// Package trace asks the real BPF programs what they would do with a packet: it makes the packet, runs the program in the
// kernel over it (BPF_PROG_TEST_RUN) and reads the answer from the program's trace map and from the packet that came out.
// Frontends and backends are the live ones or private ones made from objects; flows, affinity, fragments and
// counters are always private, so that nothing a user sees changes.
package trace

import (
	"fmt"
	"net/netip"

	"github.com/nearlb/nearlb/pkg/lb"
)

// Door says where the packet comes from.
type Door string

// The doors of contracts.md.
const (
	FromPod     Door = "pod"     // a pod of this node: program from_pod
	FromHost    Door = "host"    // a socket of the node itself: what the sock programs decide when it connects
	FromNetwork Door = "network" // off the node: program from_net
)

// Request is one question: what happens to the first packet of a connection.
type Request struct {
	ID       string
	From     Door
	Source   netip.AddrPort // port 0: any; the packets then come from successive ports
	To       netip.AddrPort
	Protocol lb.Protocol
	Count    int       // packets, each from another source port; 0 is 1
	Question *Question // what the packets ask for; nil: they carry nothing
}

// Ports that packets of a Request come from: above those that need privilege, starting where Linux takes its own.
const (
	lowestPort  = 1024
	usualPort   = 32768
	highestPort = 65535

	// MostPackets of one Request: each has a source port of its own.
	MostPackets = highestPort - lowestPort + 1
)

// Check says what is wrong with a request, with its field as in `nearlb trace --packets`.
func (r Request) Check() error {
	switch {
	case r.From != FromPod && r.From != FromHost && r.From != FromNetwork:
		return fmt.Errorf("from %q: want pod, host or network", r.From)
	case r.From == FromHost && r.Protocol == ICMP:
		return fmt.Errorf("proto \"icmp\": the echo requests of the node itself meet no program: nearlb sees its TCP and UDP sockets")
	case !r.Source.Addr().IsValid():
		return fmt.Errorf("src: missing: want an IP address")
	case !r.To.Addr().IsValid():
		return fmt.Errorf("dst: missing: want an IP address")
	case r.Source.Addr().Is4() != r.To.Addr().Is4():
		return fmt.Errorf("dst %q: not of the family of src %q", r.To.Addr(), r.Source.Addr())
	case r.Protocol != lb.TCP && r.Protocol != lb.UDP && r.Protocol != lb.SCTP && r.Protocol != ICMP:
		return fmt.Errorf("proto %q: want tcp, udp, sctp or icmp", r.Protocol)
	case r.Protocol != ICMP && r.To.Port() == 0:
		return fmt.Errorf("dst %q: its port is missing", r.To.Addr())
	case r.Question != nil && r.Protocol != lb.UDP:
		return fmt.Errorf("question %q: it is asked by UDP: want proto udp", r.Question.Name)
	case r.Count < 0 || r.Count > MostPackets:
		return fmt.Errorf("count %d: want 1 to %d, as each packet has its own source port", r.Count, MostPackets)
	}
	return nil
}

// source is the address and port of packet number i.
func (r Request) source(i int) netip.AddrPort {
	port := int(r.Source.Port())
	if port == 0 {
		port = usualPort
	}
	if port += i; port > highestPort {
		port = lowestPort + (port-highestPort-1)%MostPackets
	}
	return netip.AddrPortFrom(r.Source.Addr(), uint16(port))
}

// Answer is the contract's answer to a Request. Verdict and reason are those of its first packet, snat and source those of the first one that went
// on: of others each backend says what it sees.
type Answer struct {
	ID       string         `json:"id,omitempty"`
	Verdict  string         `json:"verdict"`            // translate, pass, reject or drop
	Reason   string         `json:"reason"`             // the verdict's name in the BPF code, without its class
	Service  string         `json:"service,omitempty"`  // "namespace/name"; absent when no service matched
	Port     *string        `json:"port,omitempty"`     // name of the service's port, which may be empty
	Backends []Backend      `json:"backends"`           // by address
	SNAT     bool           `json:"snat"`               // whether the client's address is replaced
	Way      *Way           `json:"way,omitempty"`      // of a client off the node to a backend on another node
	Source   *netip.Addr    `json:"source,omitempty"`   // the address that the other end sees; absent when none sees any
	Question *Asked         `json:"question,omitempty"` // who answers the first packet's
	Verdicts map[string]int `json:"verdicts,omitempty"` // packets by verdict ("reject-no-endpoints"), when not all have the same one
}

// Way is how the first packet gets from this node to a backend on another one.
type Way struct {
	Name    lb.OffNode `json:"name"`    // snat, carry or dsr
	Because string     `json:"because"` // in words
}

// Backend is one backend that got packets of a Request, and how many.
type Backend struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port"`
	Tier    string     `json:"tier"` // how near it is: node, zone, region or cluster
	Count   int        `json:"count"`
	Source  netip.Addr `json:"source,omitzero"` // that it sees; absent where all have the answer's source and way
	Way     *Way       `json:"way,omitempty"`   // of packets to it; absent likewise, and where it is on this node
}
