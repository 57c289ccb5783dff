// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// checkKubeProxy looks for the marks of kube-proxy's modes in this network namespace: its nftables tables (nftables mode),
// its iptables chains, in nftables or legacy tables (iptables mode), and its device (IPVS mode).
func checkKubeProxy() []checkRow {
	const subject = "kube-proxy"
	var rows []checkRow
	found, err := nftablesMarks()
	if err != nil {
		rows = append(rows, checkRow{subject, warning, "nftables cannot be read: " + err.Error()})
	}
	legacy, err := legacyMarks()
	if err != nil {
		rows = append(rows, checkRow{subject, warning, "iptables cannot be read: " + err.Error()})
	}
	found = append(found, legacy...)
	if _, err := net.InterfaceByName("kube-ipvs0"); err == nil {
		found = append(found, "device kube-ipvs0")
	}
	if len(found) > 0 {
		detail := fmt.Sprintf("its rules are here (%s): pods' connections come to nearlb first, all others to kube-proxy", strings.Join(found, ", "))
		rows = append(rows, checkRow{subject, warning, detail})
	}
	if len(rows) == 0 {
		rows = append(rows, checkRow{subject, good, "no rules of it"})
	}
	return rows
}

// nftablesMarks asks for all chains of all tables: kube-proxy's are in tables of its name, or are called KUBE-SERVICES.
// A kernel without nftables has none.
func nftablesMarks() ([]string, error) {
	const getChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
	const newChain = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWCHAIN
	request := nl.NewNetlinkRequest(getChain, unix.NLM_F_DUMP)
	request.AddRawData([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0})
	messages, err := request.Execute(unix.NETLINK_NETFILTER, newChain)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var marks []string
	for _, message := range messages {
		if mark := chainMark(message); mark != "" {
			marks = append(marks, mark)
		}
	}
	slices.Sort(marks)
	return slices.Compact(marks), nil
}

const nfgenmsgLength = 4 // struct nfgenmsg: family, version, resource id

// chainMark is what tells of kube-proxy in one chain: nfgenmsg, then attributes.
func chainMark(message []byte) string {
	if len(message) < nfgenmsgLength {
		return ""
	}
	attributes, err := nl.ParseRouteAttr(message[nfgenmsgLength:])
	if err != nil {
		return ""
	}
	var table, chain string
	for _, a := range attributes {
		switch a.Attr.Type &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER) {
		case unix.NFTA_CHAIN_TABLE:
			table = string(bytes.TrimRight(a.Value, "\x00"))
		case unix.NFTA_CHAIN_NAME:
			chain = string(bytes.TrimRight(a.Value, "\x00"))
		}
	}
	family := map[byte]string{unix.AF_INET: "ip", unix.AF_INET6: "ip6"}[message[0]]
	switch {
	case table == "kube-proxy":
		return "nftables table " + family + " kube-proxy"
	case chain == "KUBE-SERVICES":
		return "iptables chain KUBE-SERVICES in " + family + " " + table
	}
	return ""
}

// legacyMarks looks into the nat tables of iptables-legacy, if there are any.
func legacyMarks() ([]string, error) {
	var marks []string
	for _, family := range []struct {
		name, tables string
		domain       int
		level        int
	}{
		{"ip", "/proc/net/ip_tables_names", unix.AF_INET, unix.IPPROTO_IP},
		{"ip6", "/proc/net/ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6},
	} {
		tables, err := os.ReadFile(family.tables)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(tables)), "nat") {
			continue
		}
		if err != nil {
			return marks, err
		}
		entries, err := legacyEntries(family.domain, family.level)
		if err != nil {
			return marks, err
		}
		if bytes.Contains(entries, []byte("KUBE-SERVICES\x00")) {
			marks = append(marks, "legacy iptables chain KUBE-SERVICES in "+family.name+" nat")
		}
	}
	return marks, nil
}

// legacyEntries is the nat table as the kernel gives it (linux/netfilter_ipv4/ip_tables.h: IPT_SO_GET_INFO, then
// IPT_SO_GET_ENTRIES; the numbers are the same for IPv6).
func legacyEntries(domain, level int) ([]byte, error) {
	const (
		getInfo    = 64
		getEntries = 65
		nameLength = 32
		infoLength = nameLength + 4 + 5*4 + 5*4 + 4 + 4 // name, valid hooks, entry points, underflows, number, size
	)
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)
	info := make([]byte, infoLength)
	copy(info, "nat")
	if err := getSocketOption(fd, level, getInfo, info); err != nil {
		return nil, fmt.Errorf("read table nat: %w", err)
	}
	size := binary.NativeEndian.Uint32(info[infoLength-4:])
	entries := make([]byte, nameLength+8+int(size)) // name, size, padding to 8 bytes
	copy(entries, "nat")
	binary.NativeEndian.PutUint32(entries[nameLength:], size)
	if err := getSocketOption(fd, level, getEntries, entries); err != nil {
		return nil, fmt.Errorf("read table nat: %w", err)
	}
	return entries, nil
}
