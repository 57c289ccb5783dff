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
	kindPod     = "pod"
	kindNetwork = "network"
	ingress     = "ingress"
	egress      = "egress"
)

// Priorities of our clsact filters, where a smaller one runs first: outermost towards the pod or the network, as with TCX.
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

// hooksOf are the doors of a device (ARCHITECTURE.md, Hooks), in the order of attaching: who translates replies comes before
// who translates requests, so that a new device loses no reply.
func hooksOf(kind string, from, to *ebpf.Program) []hook {
	suffix := "_pod"
	if kind == kindNetwork {
		suffix = "_net"
	}
	return []hook{
		{kind, "to" + suffix, egress, to, ebpf.AttachTCXEgress, link.Tail(), netlink.HANDLE_MIN_EGRESS, lastPriority},
		{kind, "from" + suffix, ingress, from, ebpf.AttachTCXIngress, link.Head(), netlink.HANDLE_MIN_INGRESS, firstPriority},
	}
}

// places are where programs of ours may be, whatever the device is: for those who read and remove.
func places() []hook { return hooksOf("", nil, nil) }

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
	if !found || err != nil || ifindex <= 0 || (direction != ingress && direction != egress && direction != atXDP) {
		return key{}, false
	}
	return key{ifindex, direction}, true
}

func (h hook) key(ifindex int) key { return key{ifindex, h.direction} }

func (h hook) filterName() string { return filterPrefix + h.program }

// describe says in a row which program is there, by its name in bpf/nearlb.c.
func (r *DeviceRow) describe(program string) {
	r.Program = program
	switch {
	case strings.HasSuffix(program, "_pod"):
		r.Kind = kindPod
	case strings.HasSuffix(program, "_net"):
		r.Kind = kindNetwork
	}
}

// row is the row of a device that has nothing attached here.
func (h hook) row(device string, ifindex int) DeviceRow {
	return DeviceRow{Device: device, Ifindex: ifindex, Kind: h.kind, Program: h.program, Hook: h.direction, Others: []uint32{}}
}
