// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"
)

// parseAddress reads an IP address with or without a port: 192.0.2.1, 192.0.2.1:80, fd00::1, [fd00::1], [fd00::1]:80. Port 0 is none.
func parseAddress(text string) (netip.Addr, uint16, error) {
	if both, err := netip.ParseAddrPort(text); err == nil && both.Addr().Zone() == "" {
		if both.Port() == 0 {
			return netip.Addr{}, 0, fmt.Errorf("%q: the port must be 1 to 65535", text)
		}
		return both.Addr().Unmap(), both.Port(), nil
	}
	bare := text
	if n := len(text); n > 1 && text[0] == '[' && text[n-1] == ']' {
		bare = text[1 : n-1]
	}
	addr, err := netip.ParseAddr(bare)
	if err != nil || addr.Zone() != "" {
		return netip.Addr{}, 0, fmt.Errorf("%q: want an IP address, as 192.0.2.1, 192.0.2.1:80 or [2001:db8::1]:80", text)
	}
	return addr.Unmap(), 0, nil
}
