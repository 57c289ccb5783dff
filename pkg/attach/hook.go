// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Values of DeviceRow.
const (
	kindPod = "pod"
	ingress = "ingress"
	egress  = "egress"
)

// Priorities of our clsact filters, where a smaller one runs first: outermost towards the pod, as with TCX.
const (
	firstPriority = 1
	lastPriority  = 0xfff0
)

// filterHandle is the handle of our clsact filters: fixed, so that a new program replaces the old one in place.
const filterHandle = 0x6e6c6200

// filterPrefix begins the names of our clsact filters.
const filterPrefix = "nearlb_"

// hook is a program and its place on a device.
type hook struct {
	kind      string
	program   string // its name in bpf/nearlb.c
	direction string
	loaded    *ebpf.Program // nil when only reading
	attach    ebpf.AttachType
	anchor    link.Anchor
	parent    uint32
	priority  uint16
}

// podHooks are the doors of a pod (ARCHITECTURE.md, Hooks), in the order of attaching: who translates replies comes before
// who translates requests, so that a new device loses no reply.
func podHooks(p Programs) []hook {
	return []hook{
		{kindPod, "to_pod", egress, p.ToPod, ebpf.AttachTCXEgress, link.Tail(), netlink.HANDLE_MIN_EGRESS, lastPriority},
		{kindPod, "from_pod", ingress, p.FromPod, ebpf.AttachTCXIngress, link.Head(), netlink.HANDLE_MIN_INGRESS, firstPriority},
	}
}

// key is one place on one device.
type key struct {
	ifindex   int
	direction string
}

func (k key) pin(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%d_%s", k.ifindex, k.direction))
}

// parsePin reads the name of a pinned link's file.
func parsePin(name string) (key, bool) {
	number, direction, found := strings.Cut(name, "_")
	ifindex, err := strconv.Atoi(number)
	if !found || err != nil || ifindex <= 0 || (direction != ingress && direction != egress) {
		return key{}, false
	}
	return key{ifindex, direction}, true
}

func (h hook) key(ifindex int) key { return key{ifindex, h.direction} }

func (h hook) filterName() string { return filterPrefix + h.program }

// row is the row of a device that has nothing attached here.
func (h hook) row(device string, ifindex int) DeviceRow {
	return DeviceRow{Device: device, Ifindex: ifindex, Kind: h.kind, Program: h.program, Hook: h.direction, Others: []uint32{}}
}
