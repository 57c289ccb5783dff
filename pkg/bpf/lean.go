// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// knobOf is, by the program that is reached by tail call alone, the knob without which no program leads there (bpf/lib/config.h).
var knobOf = map[string]string{
	NearlbProgShortcut:      "shortcut_there",
	NearlbProgFromPodDns:    "dns_there",
	NearlbProgTunnelOut:     "tunnel_there",
	NearlbProgTunnelIn:      "tunnel_there",
	NearlbProgTunnelForward: "tunnel_there",
	NearlbProgTunnelBack:    "tunnel_there",
	NearlbProgTunnelIcmp:    "tunnel_there",
}

// leaveOutUnused takes out of what is to be loaded what nothing leads to, as each program takes the verifier's time: the targets of tail
// calls that the knobs leave nobody to make, and what only traces run.
func leaveOutUnused(spec *ebpf.CollectionSpec) {
	delete(spec.Programs, NearlbProgSockExplain)
	for program, knob := range knobOf {
		if v := spec.Variables[knob]; v != nil && isZero(v.Value) {
			delete(spec.Programs, program)
		}
	}
	keepCalls(spec)
}

func isZero(value []byte) bool {
	for _, b := range value {
		if b != 0 {
			return false
		}
	}
	return true
}

// keepCalls leaves tail calls to programs that are loaded.
func keepCalls(spec *ebpf.CollectionSpec) {
	for _, m := range spec.Maps {
		if !perLoad(m) {
			continue
		}
		kept := m.Contents[:0:0]
		for _, entry := range m.Contents {
			if name, ok := entry.Value.(string); !ok || spec.Programs[name] != nil {
				kept = append(kept, entry)
			}
		}
		m.Contents = kept
	}
}
