// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The kernel's list of what is called at netfilter's hooks (linux/netfilter/nfnetlink_hook.h; since 5.14, CONFIG_NETFILTER_NETLINK_HOOK).
const (
	getHooks = 0 // NFNL_MSG_HOOK_GET

	hookNumber   = 1 // NFNLA_HOOK_HOOKNUM
	hookFunction = 4 // NFNLA_HOOK_FUNCTION_NAME
	hookModule   = 5 // NFNLA_HOOK_MODULE_NAME
	hookChain    = 6 // NFNLA_HOOK_CHAIN_INFO
	chainType    = 2 // NFNLA_HOOK_INFO_TYPE
	ofNFTables   = 1 // NFNL_HOOK_TYPE_NFTABLES
)

// forwarding are the hooks that forwarded packets come by.
var forwarding = []struct {
	family uint8
	number uint32
	name   string
}{
	{unix.NFPROTO_IPV4, unix.NF_INET_PRE_ROUTING, "PREROUTING of IPv4"},
	{unix.NFPROTO_IPV4, unix.NF_INET_FORWARD, "FORWARD of IPv4"},
	{unix.NFPROTO_IPV4, unix.NF_INET_POST_ROUTING, "POSTROUTING of IPv4"},
	{unix.NFPROTO_IPV6, unix.NF_INET_PRE_ROUTING, "PREROUTING of IPv6"},
	{unix.NFPROTO_IPV6, unix.NF_INET_FORWARD, "FORWARD of IPv6"},
	{unix.NFPROTO_IPV6, unix.NF_INET_POST_ROUTING, "POSTROUTING of IPv6"},
}

// heeded are functions that are found otherwise (connection tracking and what it needs, address translation, iptables-legacy), those of security
// modules, which are always there and look at labelled packets alone, and that of br_netfilter, which is there with the first bridge and only keeps
// bridged packets from coming by the others twice. By the beginning of their names.
var heeded = []string{
	"ipv4_conntrack_", "ipv6_conntrack_", "nf_conntrack_", "ipv4_confirm", "ipv6_confirm", "nf_confirm", "ipv6_defrag", "nf_nat_",
	"ipt_do_table", "ip6t_do_table", "iptable_", "ip6table_", "selinux_", "apparmor_", "ip_sabotage_in",
}

// hook is one function at a hook.
type hook struct {
	function, module string
	nftables         bool // it is a base chain
}

func (h hook) String() string {
	if h.module == "" {
		return cmp.Or(h.function, "without a name")
	}
	return h.function + " of module " + h.module
}

// passed says whether the shortcut would pass the function by, and nothing else here finds it.
func (h hook) passed() bool {
	for _, known := range heeded {
		if strings.HasPrefix(h.function, known) {
			return false
		}
	}
	return !h.nftables
}

// hasList says whether the kernel has that list. It is asked once: one without looks for a module each time, with a process of its own.
var hasList = sync.OnceValue(func() bool {
	_, err := listHooks(forwarding[0].family, forwarding[0].number)
	return !unsupported(err)
})

// lookAtHooks lists functions that the kernel calls for forwarded packets without any rule: programs that links attach (Linux 6.4), IPVS, and
// modules of others. Of these nobody gives news: six short questions.
func lookAtHooks() (found []string, err error) {
	if !hasList() {
		return lookAtUnlisted()
	}
	for _, at := range forwarding {
		hooks, err := listHooks(at.family, at.number)
		if err != nil {
			return nil, fmt.Errorf("read functions at %s: %w", at.name, err)
		}
		for _, h := range hooks {
			if h.passed() {
				found = append(found, fmt.Sprintf("function %s at %s", h, at.name))
			}
		}
	}
	return found, nil
}

// listHooks asks for the functions at one hook. The library's own way to ask takes an answer only that names the asker's port, as the kernel's list
// of hooks does not.
func listHooks(family uint8, number uint32) (hooks []hook, err error) {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer socket.Close()
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: 1}); err != nil { // the kernel answers as it is asked
		return nil, err
	}
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_HOOK<<8|getHooks, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(hookNumber, binary.BigEndian.AppendUint32(nil, number)))
	if err := socket.Send(request); err != nil {
		return nil, err
	}
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return hooks, nil
			case m.Header.Type == unix.NLMSG_ERROR:
				return nil, answered(m.Data)
			case len(m.Data) >= nfgenmsgLength:
				hooks = append(hooks, readHook(m.Data[nfgenmsgLength:]))
			}
		}
	}
}

// answered is the error in an answer.
func answered(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
}

// readHook reads the attributes of one function.
func readHook(data []byte) (h hook) {
	attributes(data, func(kind uint16, value []byte) {
		switch kind {
		case hookFunction:
			h.function = unix.ByteSliceToString(value)
		case hookModule:
			h.module = unix.ByteSliceToString(value)
		case hookChain:
			attributes(value, func(kind uint16, value []byte) {
				h.nftables = h.nftables || kind == chainType && number(value) == ofNFTables
			})
		}
	})
	return h
}

const virtualServices = "/proc/thread-self/net/ip_vs"

// lookAtUnlisted is lookAtHooks for a kernel without the list: IPVS by its table, and links, of whatever network namespace, as far as they may be
// read (SYS_ADMIN).
func lookAtUnlisted() ([]string, error) {
	table, err := os.ReadFile(virtualServices)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the table of IPVS: %w", err)
	}
	found, err := lookAtLinks()
	if hasVirtualServices(table) {
		found = append(found, "virtual services of IPVS (ipvsadm)")
	}
	return found, err
}

// hasVirtualServices: its first three lines are headings.
func hasVirtualServices(table []byte) bool {
	return bytes.Count(table, []byte("\n")) > 3
}

// lookAtLinks lists again where a link was just being made, which the kernel asks to be asked for again.
func lookAtLinks() (found []string, err error) {
	for range tries {
		if found, err = listLinks(); !errors.Is(err, unix.EAGAIN) {
			break
		}
		time.Sleep(betweenTries)
	}
	return found, err
}

func listLinks() (found []string, err error) {
	all := link.Iterator{}
	defer all.Close()
	for all.Next() {
		info, err := all.Link.Info()
		if err != nil {
			return nil, fmt.Errorf("read a link: %w", err)
		}
		n := info.Netfilter()
		if n == nil {
			continue
		}
		for _, at := range forwarding {
			if uint32(at.family) == uint32(n.ProtocolFamily) && at.number == uint32(n.Hook) {
				found = append(found, fmt.Sprintf("program %d at %s", info.Program, at.name))
			}
		}
	}
	if err := all.Err(); err != nil && !errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return found, nil
}
