// SPDX-License-Identifier: Apache-2.0

// Package bypass lists what a packet would pass by that leaves past the host's stack (--shortcut), in the network namespace of the
// calling thread: rules and functions of netfilter, programs and queues of devices, reverse path filters, routing rules, IPsec, connection tracking.
package bypass

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Device is one that packets come by or leave by.
type Device struct {
	Name    string
	Ifindex int
	Pod     bool // the host's side of a pod; else one towards other hosts
}

// Look lists everything that is in the way, in words that name it, each once; empty: nothing. ours are the programs that may be on
// devices. What cannot be read is an error: then it is not known.
func Look(devices []Device, ours map[ebpf.ProgramID]bool) ([]string, error) {
	found := []string{}
	for _, look := range []func() ([]string, error){
		lookAtNFTables, lookAtLegacy, lookAtHooks, lookAtTracking, lookAtRules, lookAtIPsec,
		func() ([]string, error) { return lookAtFilters(devices), nil },
		func() ([]string, error) { return lookAtDevices(devices, ours) },
	} {
		more, err := look()
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	return slices.Compact(found), nil
}

// LookUntold is Look at what there is no news of.
func LookUntold(devices []Device, ours map[ebpf.ProgramID]bool) ([]string, error) {
	legacy, err := lookAtLegacy()
	hooks, errHooks := lookAtHooks()
	tracked, errTracked := lookAtTracking()
	programs, errPrograms := lookAtTCX(devices, ours)
	return slices.Concat(legacy, hooks, tracked, programs), errors.Join(err, errHooks, errTracked, errPrograms)
}

// legacyTables says which tables iptables-legacy has. Their rules are not read: there may be a policy without any.
var legacyTables = []struct{ program, path string }{
	{"iptables-legacy", "/proc/thread-self/net/ip_tables_names"}, {"ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"},
}

func lookAtLegacy() (found []string, err error) {
	for _, t := range legacyTables {
		names, err := os.ReadFile(t.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read tables of %s: %w", t.program, err)
		}
		for _, name := range strings.Fields(string(names)) {
			found = append(found, t.program+" table "+name)
		}
	}
	return found, nil
}

const trackedCount = "/proc/sys/net/netfilter/nf_conntrack_count"

// lookAtTracking: a connection that tracking knows would look wrong to it once it comes back from the shortcut.
func lookAtTracking() ([]string, error) {
	text, err := os.ReadFile(trackedCount)
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(text)) == "0" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read connection tracking: %w", err)
	}
	return []string{"connections in connection tracking (conntrack -F, once no rule asks for it)"}, nil
}

// lookAtFilters: of IPv4 the kernel takes the higher of a device's value and that of all devices; 1 is strict.
func lookAtFilters(devices []Device) (found []string) {
	value := func(device string) string {
		text, _ := os.ReadFile("/proc/sys/net/ipv4/conf/" + device + "/rp_filter") // a device that just went
		return strings.TrimSpace(string(text))
	}
	all := value("all")
	for _, d := range devices {
		if own := value(d.Name); max(all, own) == "1" {
			found = append(found, "strict reverse path filter of "+d.Name+" (rp_filter)")
		}
	}
	return found
}

// The rules that every host has: of the tables local, main and default, and for every packet.
func usualRule(r netlink.Rule) bool {
	usual := r.Priority == 0 && r.Table == unix.RT_TABLE_LOCAL || r.Priority == 32766 && r.Table == unix.RT_TABLE_MAIN ||
		r.Priority == 32767 && r.Table == unix.RT_TABLE_DEFAULT
	plain := netlink.NewRule()
	plain.Priority, plain.Table, plain.Family, plain.Protocol, plain.Type = r.Priority, r.Table, r.Family, r.Protocol, r.Type
	return usual && reflect.DeepEqual(r, *plain)
}

// lookAtRules: routing rules may ask for a mark, or for the device that the stack knows.
func lookAtRules() (found []string, err error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("read routing rules: %w", err)
		}
		for _, r := range rules {
			if !usualRule(r) {
				found = append(found, fmt.Sprintf("routing rule %d: table %d", max(r.Priority, 0), r.Table))
			}
		}
	}
	return found, nil
}

// unsupported: the kernel was built without it.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT)
}
