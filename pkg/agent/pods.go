// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// podAt is the Pod of an address, as far as one is known: slices name this node's endpoints, and Pods are read where names of
// their addresses are verified.
func (d *daemon) podAt(address netip.Addr) (lb.PodName, bool) {
	if source, knows := d.source.(watch.PodSource); knows {
		if name, known := source.PodAt(address); known {
			return name, true
		}
	}
	if d.names == nil || slices.Contains(d.source.Node().Addresses, address) {
		return lb.PodName{}, false
	}
	return d.names.view.PodAt(address)
}
