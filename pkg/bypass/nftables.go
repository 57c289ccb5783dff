// SPDX-License-Identifier: Apache-2.0

package bypass

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// chain is a base chain of nftables: one that the kernel calls by itself.
type chain struct {
	family      uint8
	table, name string
	hook        uint32 // NF_INET_..., NF_NETDEV_...
	drops       bool   // its policy is to drop
	uses        uint32 // rules in it
}

// families are those whose chains see forwarded packets.
var families = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_NETDEV: "netdev"}

// sees says whether forwarded packets come by the chain: by PREROUTING, FORWARD and POSTROUTING, and by any of a device. At INPUT and
// OUTPUT there are none.
func (c chain) sees() bool {
	if families[c.family] == "" || c.uses == 0 && !c.drops {
		return false
	}
	return c.family == unix.NFPROTO_NETDEV || !slices.Contains([]uint32{unix.NF_INET_LOCAL_IN, unix.NF_INET_LOCAL_OUT}, c.hook)
}

func (c chain) String() string {
	return fmt.Sprintf("nftables chain %s %s %s", families[c.family], c.table, c.name)
}

// lookAtNFTables lists chains with a rule, or with a policy to drop. What the rules say is not read.
func lookAtNFTables() (found []string, err error) {
	messages, err := listChains()
	if err != nil {
		return nil, fmt.Errorf("read nftables: %w", err)
	}
	for _, m := range messages {
		if c, base := readChain(m); base && c.sees() {
			found = append(found, c.String())
		}
	}
	return found, nil
}

const (
	tries        = 5
	betweenTries = 10 * time.Millisecond
)

// listChains asks for all chains. A list that others changed meanwhile is asked for again.
func listChains() (messages [][]byte, err error) {
	for range tries {
		request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
		request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
		messages, err = request.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWCHAIN)
		if unsupported(err) {
			return nil, nil
		}
		if !errors.Is(err, nl.ErrDumpInterrupted) {
			break
		}
		time.Sleep(betweenTries)
	}
	return messages, err
}

const nfgenmsgLength = 4 // struct nfgenmsg: family, version, resource id

// nestedMask takes the flags from an attribute's type.
const nestedMask = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

// readChain reads one chain: nfgenmsg, then attributes, numbers in network byte order. base is false of one that is only jumped to.
func readChain(message []byte) (c chain, base bool) {
	if len(message) < nfgenmsgLength {
		return c, false
	}
	c.family = message[0]
	c.hook = ^uint32(0)
	attributes(message[nfgenmsgLength:], func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			c.table = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_NAME:
			c.name = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_POLICY:
			c.drops = number(value) == 0 // NF_DROP
		case unix.NFTA_CHAIN_USE:
			c.uses = number(value)
		case unix.NFTA_CHAIN_HOOK:
			base = true
			attributes(value, func(kind uint16, value []byte) {
				if kind == unix.NFTA_HOOK_HOOKNUM {
					c.hook = number(value)
				}
			})
		}
	})
	return c, base
}

func number(value []byte) uint32 {
	if len(value) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// attributes calls see for each; what cannot be read is left out.
func attributes(data []byte, see func(kind uint16, value []byte)) {
	all, err := nl.ParseRouteAttr(data)
	if err != nil {
		return
	}
	for _, a := range all {
		see(a.Attr.Type&^nestedMask, a.Value)
	}
}
