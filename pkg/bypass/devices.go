// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// place is a side of a device where programs run.
type place struct {
	name   string
	parent uint32 // of clsact filters
	attach ebpf.AttachType
}

var ingress = place{"ingress", netlink.HANDLE_MIN_INGRESS, ebpf.AttachTCXIngress}
var egress = place{"egress", netlink.HANDLE_MIN_EGRESS, ebpf.AttachTCXEgress}

// plain are queues that hold packets back for nothing but a device that is busy; "" is none.
var plain = []string{"noqueue", "noop", "mq", "fq", "fq_codel", "pfifo_fast", "clsact", "ingress", ""}

// places are the sides of a device whose programs the shortcut passes by: those at its ingress, which would run after ours, and at a
// pod's egress.
func (d Device) places() []place {
	if d.Pod {
		return []place{ingress, egress}
	}
	return []place{ingress}
}

func (d Device) link() netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: d.Name, Index: d.Ifindex}}
}

// lookAtDevices lists programs that are not ours, and queues of pods' devices.
func lookAtDevices(devices []Device, ours map[ebpf.ProgramID]bool) (found []string, err error) {
	for _, d := range devices {
		queues, err := d.queues()
		if err != nil {
			return nil, fmt.Errorf("read queues of %s: %w", d.Name, err)
		}
		filters, err := d.filters(ours)
		if err != nil {
			return nil, fmt.Errorf("read TC filters of %s: %w", d.Name, err)
		}
		found = append(found, slices.Concat(queues, filters)...)
	}
	programs, err := lookAtTCX(devices, ours)
	return append(found, programs...), err
}

func (d Device) queues() (found []string, err error) {
	if !d.Pod {
		return nil, nil
	}
	queues, err := netlink.QdiscList(d.link())
	if err != nil && !gone(err) {
		return nil, err
	}
	for _, q := range queues {
		if !slices.Contains(plain, q.Type()) {
			found = append(found, fmt.Sprintf("queue %s of %s", q.Type(), d.Name))
		}
	}
	return found, nil
}

func (d Device) filters(ours map[ebpf.ProgramID]bool) (found []string, err error) {
	for _, p := range d.places() {
		filters, err := netlink.FilterList(d.link(), p.parent)
		if err != nil && !gone(err) {
			return nil, err
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); !ok || !ours[ebpf.ProgramID(b.Id)] {
				found = append(found, fmt.Sprintf("TC filter %s at %s of %s", f.Type(), p.name, d.Name))
			}
		}
	}
	return found, nil
}

// lookAtTCX lists programs that links attach (Linux 6.6).
func lookAtTCX(devices []Device, ours map[ebpf.ProgramID]bool) (found []string, err error) {
	for _, d := range devices {
		for _, p := range d.places() {
			programs, err := link.QueryPrograms(link.QueryOptions{Target: d.Ifindex, Attach: p.attach})
			switch {
			case errors.Is(err, ebpf.ErrNotSupported):
				return nil, nil
			case gone(err):
				continue
			case err != nil:
				return nil, fmt.Errorf("read TC programs of %s: %w", d.Name, err)
			}
			for _, program := range programs.Programs {
				if !ours[program.ID] {
					found = append(found, fmt.Sprintf("TC program %d at %s of %s", program.ID, p.name, d.Name))
				}
			}
		}
	}
	return found, nil
}

// gone: the device went, or has no such place.
func gone(err error) bool {
	return errors.Is(err, unix.ENODEV) || unsupported(err)
}
