// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Neighbour is somebody else's program or filter in the same place of a device as one of ours.
type Neighbour struct {
	Hook   string // ingress, egress
	Method Method // tcx, clsact
	ID     uint32 // of the program; 0: a filter that is none
	Name   string // of the program as the kernel has it, of a filter its own or its kind; "": it may not be asked
	After  bool   // it sees packets after ours
}

// Neighbours lists those of a device, in the order in which they see packets: TCX programs come before clsact filters, whichever of both
// ours is. Places without a program of ours have none.
func Neighbours(linkDir string, ifindex int) ([]Neighbour, error) {
	h, err := openNetlink()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	pinned, err := pins(linkDir)
	if err != nil {
		return nil, err
	}
	var all []Neighbour
	for _, hook := range places() {
		var ours link.ID
		if k := hook.key(ifindex); slices.Contains(pinned, k) {
			if a, err := openPinned(k.pin(linkDir)); err == nil && a != nil {
				ours = a.id
				_ = a.close()
			}
		}
		found, err := hook.neighbours(h, ifindex, ours)
		if err != nil {
			return nil, fmt.Errorf("read device %d: %w", ifindex, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// neighbours are those in one place, beside the link of ours or our filter. A kernel before 6.6 has no TCX programs to tell of.
func (h hook) neighbours(handle *netlink.Handle, ifindex int, ours link.ID) (all []Neighbour, err error) {
	past := false // ours has seen the packet
	if q, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: h.attach}); err == nil {
		for i, p := range q.Programs {
			if i == position(q, ours) {
				past = true
				continue
			}
			all = append(all, Neighbour{Hook: h.direction, Method: TCX, ID: uint32(p.ID), Name: ProgramName(uint32(p.ID)), After: past})
		}
	}
	filters, err := filtersAt(handle, ifindex, h)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		if isOurs(f) {
			past = true
			continue
		}
		n := Neighbour{Hook: h.direction, Method: Clsact, Name: f.Type(), After: past}
		if b, ok := f.(*netlink.BpfFilter); ok {
			n.ID, n.Name = uint32(b.Id), b.Name
		}
		all = append(all, n)
	}
	if !past {
		return nil, nil
	}
	return all, nil
}
