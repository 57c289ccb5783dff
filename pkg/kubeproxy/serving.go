// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Serving is what kube-proxy takes new connections to, by what it has written: its tables, chains and device may be there and be empty.
type Serving struct {
	families []string // all of whose Services have rules, which one transaction writes; or may have: those of iptables-legacy may be hidden
	servers  map[Frontend]bool
}

// Frontend is what clients name.
type Frontend struct {
	Protocol string // TCP, UDP, SCTP
	Address  netip.AddrPort
}

// virtualServers lists those of IPVS in the network namespace of the calling thread.
const virtualServers = "/proc/thread-self/net/ip_vs"

// Serving reads what Look found, in the network namespace of the calling thread.
func (r Rules) Serving() (s Serving, err error) {
	s.families = slices.Clone(r.Hidden)
	for _, chains := range []struct {
		families []string
		some     func(family string) (bool, error)
	}{
		{r.NFTables, func(family string) (bool, error) { return someRule(family, attribute{unix.NFTA_RULE_TABLE, table}) }},
		{r.IPTables, func(family string) (bool, error) {
			return someRule(family, attribute{unix.NFTA_RULE_TABLE, "nat"}, attribute{unix.NFTA_RULE_CHAIN, mark})
		}},
		{r.Legacy, someLegacyRule},
	} {
		for _, family := range chains.families {
			found, err := chains.some(family)
			if err != nil {
				return s, fmt.Errorf("read kube-proxy's rules: %w", err)
			}
			if found {
				s.families = append(s.families, family)
			}
		}
	}
	if !r.IPVS {
		return s, nil
	}
	file, err := os.Open(virtualServers)
	if errors.Is(err, fs.ErrNotExist) { // the kernel has no IPVS: the device alone was left
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read the virtual servers of IPVS: %w", err)
	}
	defer file.Close()
	s.servers, err = readVirtualServers(file)
	return s, err
}

// Takes says whether kube-proxy takes new connections to f. In mode IPVS it writes one virtual server after the other, and none for loopback
// addresses.
func (s Serving) Takes(f Frontend) bool {
	family := "ip"
	if f.Address.Addr().Is6() {
		family = "ip6"
	}
	return slices.Contains(s.families, family) || s.servers[f] || len(s.servers) > 0 && f.Address.Addr().IsLoopback()
}

// someRule looks for any rule of a table or a chain.
func someRule(family string, where ...attribute) (bool, error) {
	return settled(func() (bool, error) { return listedRule(family, where) })
}

// listedRule is one list's answer: its first rule does.
func listedRule(family string, where []attribute) (found bool, err error) {
	number := uint8(unix.AF_INET)
	if family == "ip6" {
		number = unix.AF_INET6
	}
	rules := question(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, number, where...)
	err = rules.ExecuteIter(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE, func([]byte) bool {
		found = true
		return false
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil // it went
	}
	return found, err
}

// readVirtualServers reads lines such as "TCP  0A600001:01BB rr " and "UDP  [fd96:0000:...:0001]:0035 rr "; those of their backends begin
// with "->", those by a mark of the firewall with FWM.
func readVirtualServers(from io.Reader) (map[Frontend]bool, error) {
	all := map[Frontend]bool{}
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || !slices.Contains([]string{"TCP", "UDP", "SCTP"}, words[0]) {
			continue
		}
		at, err := parseVirtualServer(words[1])
		if err != nil {
			return nil, fmt.Errorf("read the virtual server %q of IPVS: %w", words[1], err)
		}
		all[Frontend{words[0], at}] = true
	}
	return all, lines.Err()
}

// parseVirtualServer reads an address and a port, of which all but IPv6 addresses are hexadecimal.
func parseVirtualServer(text string) (netip.AddrPort, error) {
	i := strings.LastIndexByte(text, ':')
	port, err := strconv.ParseUint(text[i+1:], 16, 16)
	if err != nil || i < 0 {
		return netip.AddrPort{}, errors.Join(err, errors.New("no port"))
	}
	if six, found := strings.CutPrefix(text[:i], "["); found {
		address, err := netip.ParseAddr(strings.TrimSuffix(six, "]"))
		return netip.AddrPortFrom(address, uint16(port)), err
	}
	octets, err := hex.DecodeString(text[:i])
	address, _ := netip.AddrFromSlice(octets)
	return netip.AddrPortFrom(address, uint16(port)), err
}
