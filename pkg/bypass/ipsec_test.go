// SPDX-License-Identifier: Apache-2.0

package bypass_test

import (
	"net/netip"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/tests/privileged"
)

// What programs send passes policies of IPsec by, so that no device is closed by one: hosts that one may be for are left out of what is carried.
func TestADeviceIsOpenUnlessNothingIsCarriedThere(t *testing.T) {
	to := []netip.Addr{netip.MustParseAddr("198.51.100.2"), netip.MustParseAddr("2001:db8:2::2")}
	policy := func(what string) string {
		return "ip xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 " + what + "; ip xfrm policy add src 2001:db8:1::/64 dst 2001:db8:2::/64 " + what
	}
	answers := func(what string) string {
		return "ip xfrm policy add src 198.51.100.0/24 dst 192.0.2.0/24 " + what + "; ip xfrm policy add src 2001:db8:2::/64 dst 2001:db8:1::/64 " + what
	}
	all, both, one := bypass.Ways{Number: 2, Open: []string{"net"}}, bypass.Ways{Number: 2, Heeded: 2}, bypass.Ways{Number: 2, Heeded: 1, Open: []string{"net"}}
	for name, row := range map[string]struct {
		make string
		want bypass.Ways
	}{
		"no policy":                   {"true", all},
		"a policy":                    {policy("dir out tmpl proto esp mode transport"), both},
		"one of UDP":                  {policy("proto udp dir out tmpl proto esp mode transport"), both},
		"one of a port":               {policy("proto udp dport 6091 dir out tmpl proto esp mode transport"), both},
		"one that forbids":            {policy("dir out action block"), both},
		"one that signs":              {policy("dir out tmpl proto ah mode transport"), both},
		"one that encrypts if it can": {policy("dir out tmpl proto esp mode transport level use"), both},
		"one of everything":           {"ip xfrm policy add src 0.0.0.0/0 dst 0.0.0.0/0 dir out tmpl src 192.0.2.1 dst 192.0.2.9 proto esp mode tunnel", one},
		"one of TCP":                  {policy("proto tcp dir out tmpl proto esp mode transport"), all},
		"one of what comes in":        {policy("dir in tmpl proto esp mode transport"), all},
		"one of what they send":       {answers("dir in tmpl proto esp mode transport"), both},
		"one of their TCP":            {answers("proto tcp dir in tmpl proto esp mode transport"), all},
		"one of what goes on":         {answers("dir fwd tmpl proto esp mode transport"), all},
		"one that lets pass":          {policy("dir out"), all},
		"one for other hosts":         {"ip xfrm policy add src 192.0.2.0/24 dst 203.0.113.0/24 dir out tmpl proto esp mode transport", all},
		"one of a family":             {"ip xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 dir out tmpl proto esp mode transport", one},
		"no way":                      {"ip link set net down", bypass.Ways{}},
	} {
		t.Run(name, func(t *testing.T) {
			privileged.Namespace(t, func(*os.File) {
				devices(t)
				shell(t, "ip link set net up; ip address add 192.0.2.1/24 dev net; ip -6 address add 2001:db8:1::1/64 dev net nodad; ip route add 198.51.100.0/24 via 192.0.2.9; ip -6 route add 2001:db8:2::/64 via 2001:db8:1::9")
				shell(t, row.make)
				ways, err := bypass.WaysTo(to)
				if diff := cmp.Diff(row.want, ways); err != nil || diff != "" {
					t.Errorf("%v, (-want +got)\n%s", err, diff)
				}
			})
		})
	}
}
