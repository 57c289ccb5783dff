// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// Timeouts are after how many seconds without a packet an entry of the flow table is free again.
type Timeouts struct {
	TCPEstablished, TCPUnanswered, TCPClosed uint32
	TCPHeld                                  uint32 // closed, and the entry keeps a port of SNAT that the server remembers
	UDPAnswered, UDPUnanswered               uint32
}

// DefaultTimeouts are those of bpf/lib/config.h, read from the embedded object.
func DefaultTimeouts() Timeouts {
	spec, err := parsedTables()
	if err != nil {
		return Timeouts{}
	}
	return Timeouts{
		TCPEstablished: knob(spec, "tcp_established_timeout", 86400),
		TCPUnanswered:  knob(spec, "tcp_unanswered_timeout", 60),
		TCPClosed:      knob(spec, "tcp_closed_timeout", 10),
		TCPHeld:        knob(spec, "tcp_held_timeout", 62),
		UDPAnswered:    knob(spec, "udp_answered_timeout", 180),
		UDPUnanswered:  knob(spec, "udp_unanswered_timeout", 30),
	}
}

// knob is the default of a constant of the object; other when the object does not have it.
func knob(spec *ebpf.CollectionSpec, name string, other uint32) uint32 {
	var value uint32
	if v := spec.Variables[name]; v == nil || v.Get(&value) != nil {
		return other
	}
	return value
}
