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
}{
	{"ip", "/proc/thread-self/net/ip_tables_names", unix.AF_INET, unix.IPPROTO_IP},
	{"ip6", "/proc/thread-self/net/ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6},
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

// legacyEntries is the nat table as the kernel gives it (linux/netfilter_ipv4/ip_tables.h: IPT_SO_GET_INFO, then
// IPT_SO_GET_ENTRIES; the numbers are the same for IPv6). EAGAIN: its size changed between the two.
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
