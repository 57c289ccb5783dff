// SPDX-License-Identifier: Apache-2.0

package bypass_test

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/tests/privileged"
)

// A policy of IPsec protects what it is for, in its direction, and nothing else; where nothing is known to go anywhere, nothing is said to be safe.
func TestADeviceIsOpenUnlessWhatLeavesByItIsEncrypted(t *testing.T) {
	to := []netip.Addr{netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8:2::2")}
	policy := func(what string) string {
		return "ip xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 " + what + "; ip xfrm policy add src 2001:db8:1::/64 dst 2001:db8:2::/64 " + what
	}
	for name, row := range map[string]struct {
		make string
		open []string
		ways int
	}{
		"no policy":                         {make: "true", open: []string{"net"}, ways: 2},
		"a policy":                          {make: policy("dir out tmpl proto esp mode transport"), ways: 2},
		"one of UDP":                        {make: policy("proto udp dir out tmpl proto esp mode transport"), ways: 2},
		"one of TCP":                        {make: policy("proto tcp dir out tmpl proto esp mode transport"), open: []string{"net"}, ways: 2},
		"one of what comes in":              {make: policy("dir in tmpl proto esp mode transport"), open: []string{"net"}, ways: 2},
		"one that encrypts if it can":       {make: policy("dir out tmpl proto esp mode transport level use"), open: []string{"net"}, ways: 2},
		"one that signs":                    {make: policy("dir out tmpl proto ah mode transport"), open: []string{"net"}, ways: 2},
		"one for other hosts":               {make: "ip xfrm policy add src 192.0.2.0/24 dst 203.0.113.0/24 dir out tmpl proto esp mode transport", open: []string{"net"}, ways: 2},
		"one of a family":                   {make: "ip xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 dir out tmpl proto esp mode transport", open: []string{"net"}, ways: 2},
		"one behind one that lets UDP pass": {make: policy("dir out priority 9 tmpl proto esp mode transport") + "; " + policy("proto udp dir out priority 5"), open: []string{"net"}, ways: 2},
		"one before one that lets UDP pass": {make: policy("dir out priority 5 tmpl proto esp mode transport") + "; " + policy("proto udp dir out priority 9"), ways: 2},
		"one beside one that lets UDP pass": {make: policy("dir out priority 5 tmpl proto esp mode transport") + "; " + policy("proto udp dir out priority 5"), open: []string{"net"}, ways: 2},
		"one behind one for a port":         {make: policy("dir out priority 9 tmpl proto esp mode transport") + "; " + policy("proto udp dport 6091 dir out priority 5"), open: []string{"net"}, ways: 2},
		"one of another device":             {make: policy("dev lo dir out tmpl proto esp mode transport"), open: []string{"net"}, ways: 2},
		"one of the device":                 {make: policy("dev net dir out tmpl proto esp mode transport"), ways: 2},
		"no way":                            {make: "ip link set net down"},
	} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				devices(t)
				shell(t, "ip link set net up; ip address add 192.0.2.1/24 dev net; ip -6 address add 2001:db8:1::1/64 dev net nodad; ip route add 198.51.100.0/24 via 192.0.2.9; ip -6 route add 2001:db8:2::/64 via 2001:db8:1::9")
				shell(t, row.make)
				open, ways, err := bypass.Open(to)
				if err != nil || !slices.Equal(open, row.open) || ways != row.ways {
					t.Errorf("open are %q, %d ways, %v; want %q, %d", open, ways, err, row.open, row.ways)
				}
			})
		})
	}
}
