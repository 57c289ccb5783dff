// SPDX-License-Identifier: Apache-2.0

package privileged

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TCX says whether the kernel attaches programs to devices by links (Linux 6.6). It asks what is attached to lo.
func TCX(t testing.TB) bool {
	t.Helper()
	const loopback = 1
	_, err := link.QueryPrograms(link.QueryOptions{Target: loopback, Attach: ebpf.AttachTCXIngress})
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, ebpf.ErrNotSupported) {
		t.Fatalf("ask for programs attached to lo: %v", err)
	}
	return err == nil
}

// Attach attaches a program to a device of the calling thread's network namespace for as long as the test runs, by TCX where
// the kernel has it, else as a clsact filter. The filter stays with its device.
func Attach(t testing.TB, ifindex int, at ebpf.AttachType, program *ebpf.Program) {
	t.Helper()
	if !TCX(t) {
		if err := attachFilter(ifindex, at, program); err != nil {
			t.Fatalf("attach clsact filter: %v", err)
		}
		return
	}
	attached, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: at})
	if err != nil {
		t.Fatalf("attach by TCX: %v", err)
	}
	t.Cleanup(func() { attached.Close() })
}

func attachFilter(ifindex int, at ebpf.AttachType, program *ebpf.Program) error {
	err := netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	parent := uint32(netlink.HANDLE_MIN_INGRESS)
	if at == ebpf.AttachTCXEgress {
		parent = netlink.HANDLE_MIN_EGRESS
	}
	return netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: ifindex, Parent: parent, Handle: 1, Priority: 100, Protocol: unix.ETH_P_ALL},
		Fd:          program.FD(), Name: "test", DirectAction: true,
	})
}
