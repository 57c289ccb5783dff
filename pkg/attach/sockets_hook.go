// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
)

// kindCgroup is the kind of a row that is about a cgroup instead of a device.
const kindCgroup = "cgroup"

// CgroupLink is how programs are attached to a cgroup (Linux 5.7).
const CgroupLink Method = "cgroup"

// socketHook is a system call of sockets that a program sees.
type socketHook struct {
	name   string // "connect4"
	attach ebpf.AttachType
}

// socketHooks are in the order of attaching: who translates answers comes before who translates requests.
func socketHooks() []socketHook {
	return []socketHook{
		{"getpeername4", ebpf.AttachCgroupInet4GetPeername},
		{"getpeername6", ebpf.AttachCgroupInet6GetPeername},
		{"recvmsg4", ebpf.AttachCGroupUDP4Recvmsg},
		{"recvmsg6", ebpf.AttachCGroupUDP6Recvmsg},
		{"connect4", ebpf.AttachCGroupInet4Connect},
		{"connect6", ebpf.AttachCGroupInet6Connect},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg},
	}
}

// program is its name in bpf/nearlb.c.
func (h socketHook) program() string { return "sock_" + h.name }

// replaces is as of hook: what names a socket's peer, and the sender of a datagram, runs beside another generation's.
func (h socketHook) replaces() bool {
	return strings.HasPrefix(h.name, "connect") || strings.HasPrefix(h.name, "sendmsg")
}

// pinPrefix begins the names of pinned links of cgroups. Others begin with a number.
const pinPrefix = "cgroup_"

func (h socketHook) pin(dir string) string { return filepath.Join(dir, pinPrefix+h.name) }

func (h socketHook) row(cgroup string) DeviceRow {
	return DeviceRow{Device: cgroup, Kind: kindCgroup, Program: h.program(), Hook: h.name, Others: []uint32{}}
}

// compareHooks orders the hooks of one device: xdp, ingress, egress; of one cgroup, by name.
func compareHooks(a, b string) int {
	if a == ingress || a == egress || a == atXDP {
		return -strings.Compare(a, b)
	}
	return strings.Compare(a, b)
}
