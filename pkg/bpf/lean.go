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
	NearlbProgTunnelOpened:  knobXDPOpens,
	NearlbProgFromNetFast:   knobXDPOpens,
	NearlbProgXdpTunnelOut:  "tunnel_there",
	NearlbProgXdpTunnelIn:   "tunnel_there",
}

// leaveOutUnused takes out of what is to be loaded what nothing leads to, as each program takes the verifier's time: the targets of tail
// calls that the knobs leave nobody to make, and what only traces run.
func leaveOutUnused(spec *ebpf.CollectionSpec) {
	unused := []string{NearlbProgSockExplain}
	for program, knob := range knobOf {
		if v := spec.Variables[knob]; v != nil && isZero(v.Value) {
			unused = append(unused, program)
		}
	}
	leaveOut(spec, unused)
}

// replies are the programs of the hooks to_pod and to_net: no others call them.
var replies = []string{NearlbProgToPod, NearlbProgToPodSlow, NearlbProgToPodIcmp, NearlbProgToNet, NearlbProgToNetSlow, NearlbProgToNetIcmp}

// leaveOut takes programs out of what is to be loaded, and out of the tables of tail calls.
func leaveOut(spec *ebpf.CollectionSpec, programs []string) {
	for _, name := range programs {
		delete(spec.Programs, name)
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
