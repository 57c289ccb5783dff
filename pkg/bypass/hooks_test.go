// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/tests/privileged"
)

func attribute(kind uint16, value []byte) []byte {
	return nl.NewRtAttr(int(kind), value).Serialize()
}

// Base chains, connection tracking and legacy tables are found by what they say themselves; what else is called is named.
func TestAFunctionAtAHookIsReadAsTheKernelTellsIt(t *testing.T) {
	chain := func(kind uint32) []byte {
		return attribute(hookChain|unix.NLA_F_NESTED, attribute(chainType, binary.BigEndian.AppendUint32(nil, kind)))
	}
	for name, c := range map[string]struct {
		message []byte
		want    string // "": it is not passed by, or found otherwise
	}{
		"IPVS":                {slices.Concat(attribute(hookFunction, nl.ZeroTerminated("ip_vs_forward_icmp")), attribute(hookModule, nl.ZeroTerminated("ip_vs"))), "ip_vs_forward_icmp of module ip_vs"},
		"a program of a link": {slices.Concat(attribute(hookFunction, nl.ZeroTerminated("nf_hook_run_bpf")), chain(2)), "nf_hook_run_bpf"},
		"without its name":    {attribute(hookNumber, make([]byte, 4)), "without a name"},
		"cut":                 {attribute(hookFunction, nl.ZeroTerminated("other"))[:6], "without a name"},
		"a base chain":        {slices.Concat(attribute(hookFunction, nl.ZeroTerminated("nft_do_chain_ipv4")), chain(ofNFTables)), ""},
		"connection tracking": {attribute(hookFunction, nl.ZeroTerminated("ipv4_conntrack_in")), ""},
		"what bridges need":   {slices.Concat(attribute(hookFunction, nl.ZeroTerminated("ip_sabotage_in")), attribute(hookModule, nl.ZeroTerminated("br_netfilter"))), ""},
		"iptables-legacy":     {attribute(hookFunction, nl.ZeroTerminated("ipt_do_table")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := readHook(c.message)
			if h.passed() != (c.want != "") || h.passed() && h.String() != c.want {
				t.Errorf("%q, passed by: %v; want %q", h, h.passed(), c.want)
			}
		})
	}
}

// What the kernel calls for forwarded packets without a rule of anybody's. A kernel without a list of its hooks tells of links.
func TestFunctionsAtHooksOfTheKernelAreFound(t *testing.T) {
	privileged.Namespace(t, func(*os.File) {
		_, err := listHooks(unix.NFPROTO_IPV6, unix.NF_INET_FORWARD)
		listed := !unsupported(err)
		if hasList() != listed {
			t.Errorf("the kernel has a list: %t, and answers %v", hasList(), err)
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}); err != nil {
			t.Fatal(err)
		}
		mustFind(t, "nothing, though there is a bridge")
		attached, info := attachForwarding(t, 100)
		switch {
		case attached == nil:
			t.Log("left out: this kernel has no links at netfilter's hooks (Linux 6.4)")
		case listed:
			mustFind(t, "a program of a link", "function nf_hook_run_bpf at FORWARD of IPv6")
		default:
			mustFind(t, "a program of a link", fmt.Sprintf("program %d at FORWARD of IPv6", info.Program))
		}
		if attached != nil {
			if err := attached.Close(); err != nil {
				t.Fatal(err)
			}
			mustFind(t, "nothing once it is gone")
		}
		family, err := netlink.GenlFamilyGet("IPVS")
		switch {
		case err != nil:
			t.Log("left out: this kernel has no IPVS")
		case listed:
			addVirtualService(t, family.ID)
			mustFind(t, "IPVS", "function ip_vs_forward_icmp of module ip_vs at FORWARD of IPv4", "function ip_vs_out_hook of module ip_vs at FORWARD of IPv4")
		default:
			addVirtualService(t, family.ID)
			mustFind(t, "IPVS", "virtual services of IPVS (ipvsadm)")
		}
	})
}

// attachForwarding attaches a program that accepts all at FORWARD of IPv6; nil: the kernel has no such links.
func attachForwarding(t *testing.T, priority int32) (link.Link, *link.Info) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}}) // NF_ACCEPT
	if err != nil {
		return nil, nil
	}
	defer program.Close()
	attached, err := link.AttachNetfilter(link.NetfilterOptions{Program: program, ProtocolFamily: unix.NFPROTO_IPV6, Hook: unix.NF_INET_FORWARD, Priority: priority})
	if err != nil {
		t.Fatal(err)
	}
	info, err := attached.Info()
	if err != nil {
		t.Fatal(err)
	}
	return attached, info
}

func mustFind(t *testing.T, what string, want ...string) {
	t.Helper()
	found, err := lookAtHooks()
	slices.Sort(found)
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("%s: found %q, %v; want %q", what, found, err, want)
	}
}

// addVirtualService is `ipvsadm -A -t 192.0.2.1:80 -s rr` (linux/ip_vs.h): the kernel has its hooks from the first one on.
func addVirtualService(t *testing.T, family uint16) {
	t.Helper()
	number16 := func(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
	service := slices.Concat(
		attribute(1, number16(unix.AF_INET)), attribute(2, number16(unix.IPPROTO_TCP)),
		attribute(3, slices.Concat(net.IPv4(192, 0, 2, 1).To4(), make([]byte, 12))), attribute(4, binary.BigEndian.AppendUint16(nil, 80)),
		attribute(6, nl.ZeroTerminated("rr")), attribute(7, make([]byte, 8)), attribute(8, make([]byte, 4)), attribute(9, []byte{255, 255, 255, 255}),
	)
	request := nl.NewNetlinkRequest(int(family), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: 1, Version: 1}) // IPVS_CMD_NEW_SERVICE
	request.AddData(nl.NewRtAttr(1|unix.NLA_F_NESTED, service))
	if _, err := request.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		t.Fatal(err)
	}
}

// A link that is being made is in the kernel's list before it may be read.
func TestLinksThatAreBeingMadeKeepNobodyFromListingThem(t *testing.T) {
	privileged.Require(t)
	var making sync.WaitGroup
	defer making.Wait()
	end, begun := make(chan struct{}), make(chan struct{})
	defer close(end)
	making.Go(func() {
		privileged.Namespace(t, func(*os.File) {
			begin := sync.OnceFunc(func() { close(begun) })
			for priority := int32(1); ; begin() {
				attached, _ := attachForwarding(t, priority)
				priority++ // the kernel takes a link's place from it some time after its end
				if attached == nil {
					t.Log("left out: this kernel has no links at netfilter's hooks (Linux 6.4)")
					begin()
					return
				}
				attached.Close()
				select {
				case <-end:
					return
				default:
				}
			}
		})
	})
	<-begun
	for range 1000 {
		if _, err := lookAtLinks(); err != nil {
			t.Fatal(err)
		}
	}
}
