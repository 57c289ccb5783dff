// SPDX-License-Identifier: Apache-2.0

// Package kubeproxy finds what kube-proxy has in the kernel, in the network namespace of the calling thread: its rules, and the
// connections that they translate.
package kubeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Rules are what kube-proxy keeps, or has left, in each of its modes. Families are "ip" and "ip6".
type Rules struct {
	NFTables []string // families with a table kube-proxy
	IPTables []string // families whose nat table, kept by nftables, has its chains
	Legacy   []string // likewise of iptables-legacy
	Hidden   []string // families of iptables-legacy whose nat table may not be read (CAP_NET_RAW): perhaps
	IPVS     bool     // its device
	NAT      bool     // some chain of NAT exists, whoever made it: connections that NAT translates go on
}

// The names that tell of kube-proxy: its table, the chain of its other mode, its device.
const (
	table  = "kube-proxy"
	mark   = "KUBE-SERVICES"
	device = "kube-ipvs0"
)

// Look reads the rules. A kernel without netfilter has none.
func Look() (r Rules, err error) {
	for _, family := range []struct {
		name   string
		number uint8
	}{{"ip", unix.AF_INET}, {"ip6", unix.AF_INET6}} {
		found, err := exists(unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, family.number, attribute{unix.NFTA_TABLE_NAME, table})
		if err != nil {
			return r, fmt.Errorf("read nftables: %w", err)
		}
		if found {
			r.NFTables = append(r.NFTables, family.name)
		}
		found, err = exists(unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, family.number,
			attribute{unix.NFTA_CHAIN_TABLE, "nat"}, attribute{unix.NFTA_CHAIN_NAME, mark})
		if err != nil {
			return r, fmt.Errorf("read nftables: %w", err)
		}
		if found {
			r.IPTables = append(r.IPTables, family.name)
		}
	}
	if _, err := net.InterfaceByName(device); err == nil {
		r.IPVS = true
	}
	if err := r.lookAtLegacy(); err != nil {
		return r, fmt.Errorf("read iptables: %w", err)
	}
	r.NAT = r.NAT || r.Any()
	if !r.NAT { // kube-proxy may have tens of thousands of chains: they are listed only without it
		r.NAT, err = someNAT()
	}
	return r, err
}

// Any says whether something of kube-proxy is here.
func (r Rules) Any() bool {
	return len(r.NFTables)+len(r.IPTables)+len(r.Legacy) > 0 || r.IPVS
}

// Marks are what was found, for people.
func (r Rules) Marks() (marks []string) {
	for _, family := range r.NFTables {
		marks = append(marks, "nftables table "+family+" "+table)
	}
	for _, family := range r.IPTables {
		marks = append(marks, "iptables chain "+mark+" in "+family+" nat")
	}
	for _, family := range r.Legacy {
		marks = append(marks, "legacy iptables chain "+mark+" in "+family+" nat")
	}
	if r.IPVS {
		marks = append(marks, "device "+device)
	}
	return marks
}

// Remove are the commands that take the rules away; none for IPVS, whose device and virtual servers kube-proxy removes. They wait
// (-w) for whoever has the lock of iptables just then.
func (r Rules) Remove() (commands []string) {
	for _, family := range r.NFTables {
		commands = append(commands, "nft delete table "+family+" "+table)
	}
	for _, tool := range []struct {
		suffix   string
		families []string
	}{{"", r.IPTables}, {"-legacy", r.Legacy}} {
		for _, family := range tool.families {
			program := map[string]string{"ip": "iptables", "ip6": "ip6tables"}[family] + tool.suffix
			commands = append(commands, fmt.Sprintf("%s-save | grep -v KUBE- | %s-restore -w", program, program))
		}
	}
	if r.IPVS {
		commands = append(commands, "kube-proxy --cleanup")
	}
	return commands
}

type attribute struct {
	kind int
	text string
}

// question is one to nftables; family: AF_UNSPEC for all of them.
func question(get, flags int, family uint8, about ...attribute) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|get, flags)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
	for _, a := range about {
		request.AddData(nl.NewRtAttr(a.kind, nl.ZeroTerminated(a.text)))
	}
	return request
}

// exists asks for one thing by its name.
func exists(get, answer int, family uint8, names ...attribute) (bool, error) {
	messages, err := question(get, 0, family, names...).Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|answer))
	if errors.Is(err, unix.ENOENT) || noNetfilter(err) {
		return false, nil
	}
	return len(messages) > 0, err
}

// noNetfilter: the kernel has no nftables.
func noNetfilter(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)
}

// tries is how often something is read that others changed meanwhile.
const (
	tries        = 5
	betweenTries = 10 * time.Millisecond
)

// settled asks a list whether it has something. One that was interrupted may lack it.
func settled(listed func() (bool, error)) (found bool, err error) {
	for range tries {
		if found, err = listed(); found || !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
		time.Sleep(betweenTries)
	}
	if found {
		return true, nil
	}
	return false, err
}

// someNAT looks for any chain of type nat, of all tables.
func someNAT() (bool, error) {
	found, err := settled(listedNAT)
	if err != nil {
		return false, fmt.Errorf("read nftables: %w", err)
	}
	return found, nil
}

// listedNAT is one list's answer.
func listedNAT() (bool, error) {
	const newChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN
	messages, err := question(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.AF_UNSPEC).Execute(unix.NETLINK_NETFILTER, newChain)
	if noNetfilter(err) {
		return false, nil
	}
	return slices.ContainsFunc(messages, isNAT), err
}

const nfgenmsgLength = 4 // struct nfgenmsg: family, version, resource id

// isNAT reads one chain: nfgenmsg, then attributes.
func isNAT(message []byte) bool {
	if len(message) < nfgenmsgLength {
		return false
	}
	attributes, err := nl.ParseRouteAttr(message[nfgenmsgLength:])
	if err != nil {
		return false
	}
	return slices.ContainsFunc(attributes, func(a syscall.NetlinkRouteAttr) bool {
		return a.Attr.Type == unix.NFTA_CHAIN_TYPE && string(bytes.TrimRight(a.Value, "\x00")) == "nat"
	})
}
