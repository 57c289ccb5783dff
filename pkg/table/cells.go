// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// HostPort is an address and its port; "" for none.
func HostPort(address netip.Addr, port uint16) string {
	if !address.IsValid() {
		return ""
	}
	return net.JoinHostPort(address.String(), strconv.Itoa(int(port)))
}

// WithPort is a Service, with the name of its port if that has one.
func WithPort(service, port string) string {
	if port == "" {
		return service
	}
	return service + ":" + port
}

// SecondsText is a time; "" for none.
func SecondsText(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%ds", seconds)
}

// Joined are the values, separated by commas.
func Joined[S fmt.Stringer](all []S) string {
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return strings.Join(texts, ",")
}

// OrDash is a text that can be printed, a dash for none.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return Printable(text)
}
