// SPDX-License-Identifier: Apache-2.0

package kubeproxy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// legacyTables are the families of iptables-legacy.
var legacyTables = []struct {
	family, tables string
	domain         int
	level          int
	layout         layout
}{
	{"ip", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.IPPROTO_IP, layout{88, 90}},
	{"ip6", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6, layout{140, 142}},
}

// lookAtLegacy looks into the nat tables of iptables-legacy, if there are any. What may not be read may be kube-proxy's.
func (r *Rules) lookAtLegacy() error {
	for _, t := range legacyTables {
		names, err := os.ReadFile(t.tables)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(names)), "nat") {
			continue
		}
		if err != nil {
			return err
		}
		r.NAT = true
		entries, err := settledEntries(t.domain, t.level)
		if errors.Is(err, unix.EPERM) {
			r.Hidden = append(r.Hidden, t.family)
			continue
		}
		if err != nil {
			return err
		}
		if bytes.Contains(entries, []byte(mark+"\x00")) {
			r.Legacy = append(r.Legacy, t.family)
		}
	}
	return nil
}

// settledEntries is legacyEntries of a table that may just be replaced.
func settledEntries(domain, level int) (entries []byte, err error) {
	for range tries {
		if entries, err = legacyEntries(domain, level); !errors.Is(err, unix.EAGAIN) {
			break
		}
		time.Sleep(betweenTries)
	}
	return entries, err
}

// Numbers of linux/netfilter_ipv4/ip_tables.h, the same for IPv6: struct ipt_getinfo is the table's name, valid hooks, entry
// points, underflows, the number of entries and their size; struct ipt_get_entries the name and the size, padded.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES
	nameLength = 32

	entriesHeader = nameLength + 8
	infoLength    = nameLength + 4 + 5*4 + 5*4 + 4 + 4
)

// legacyInfo is what the kernel says of the nat table as a whole.
func legacyInfo(domain, level int) ([]byte, error) {
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)
	return infoBy(fd, level)
}

func infoBy(fd, level int) ([]byte, error) {
	info := make([]byte, infoLength)
	copy(info, "nat")
	if err := getSocketOption(fd, level, getInfo, info); err != nil {
		return nil, fmt.Errorf("read table nat: %w", err)
	}
	return info, nil
}

// legacyEntries is the nat table as the kernel gives it. EAGAIN: its size changed while it was read.
func legacyEntries(domain, level int) ([]byte, error) {
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("open raw socket: %w", err)
	}
	defer unix.Close(fd)
	info, err := infoBy(fd, level)
	if err != nil {
		return nil, err
	}
	size := binary.NativeEndian.Uint32(info[infoLength-4:])
	entries := make([]byte, entriesHeader+int(size))
	copy(entries, "nat")
	binary.NativeEndian.PutUint32(entries[nameLength:], size)
	if err := getSocketOption(fd, level, getEntries, entries); err != nil {
		return nil, fmt.Errorf("read table nat: %w", err)
	}
	return entries, nil
}

// someLegacyRule says whether the chain of kube-proxy has a rule.
func someLegacyRule(family string) (bool, error) {
	for _, t := range legacyTables {
		if t.family != family {
			continue
		}
		entries, err := settledEntries(t.domain, t.level)
		if err != nil {
			return false, err
		}
		return chainHasRules(entries[entriesHeader:], t.layout), nil
	}
	return false, nil
}

// layout is where the kernel's struct ipt_entry or ip6t_entry has the offsets of its target and of the next entry, of 16 bits each.
type layout struct{ target, next int }

// struct xt_entry_target: its size, of 16 bits, and its name; then an error's has a chain's name.
const (
	targetName = 2
	errorName  = 32
)

// chainHasRules walks through the entries of a table. A chain begins with an entry whose target is ERROR and has its name, and ends with one
// that returns: another one between is a rule.
func chainHasRules(entries []byte, l layout) bool {
	rules, inside := 0, false
	for len(entries) >= l.next+2 {
		target, next := int(binary.NativeEndian.Uint16(entries[l.target:])), int(binary.NativeEndian.Uint16(entries[l.next:]))
		if next < target || next <= l.next || next > len(entries) {
			return false
		}
		head := bytes.HasPrefix(entries[min(target+targetName, next):next], []byte("ERROR\x00"))
		switch {
		case head && inside:
			return rules > 1
		case head:
			inside = bytes.HasPrefix(entries[min(target+errorName, next):next], []byte(mark+"\x00"))
		case inside:
			rules++
		}
		entries = entries[next:]
	}
	return inside && rules > 1
}
