// SPDX-License-Identifier: Apache-2.0

package bpf

import "github.com/cilium/ebpf"

// replies are the programs of the hooks to_pod and to_net: no others call them.
var replies = []string{NearlbProgToPod, NearlbProgToPodSlow, NearlbProgToPodIcmp, NearlbProgToNet, NearlbProgToNetSlow, NearlbProgToNetIcmp}

// dropReplies takes these out of what is to be loaded, and out of the tables of tail calls.
func dropReplies(spec *ebpf.CollectionSpec) {
	for _, name := range replies {
		delete(spec.Programs, name)
	}
	keepCalls(spec)
}
