// SPDX-License-Identifier: Apache-2.0

package client

import (
	"net/netip"
	"testing"
	"time"
)

func TestAPortIsKnownAsLongAsConnectionTrackingKnowsIt(t *testing.T) {
	var ports Ports
	to, other := netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8::1]:80")
	at := time.Unix(1000, 0)
	for _, step := range []struct {
		to    netip.AddrPort
		port  int
		after time.Duration // the step before
		known bool
	}{
		{to, 1024, 0, false},
		{to, 1025, 0, false},
		{other, 1024, 0, false},
		{to, 1024, 29 * time.Second, true},   // and a stream from now on
		{to, 1024, 119 * time.Second, true},  // still
		{to, 1024, 120 * time.Second, false}, // no more
		{to, 1024, 30 * time.Second, false},  // a question whose answer is old
		{other, 1024, 0, false},
	} {
		at = at.Add(step.after)
		if known := ports.use(step.to, step.port, at); known != step.known {
			t.Errorf("%s: %s from port %d: known %t, want %t", at.UTC().Format(time.TimeOnly), step.to, step.port, known, step.known)
		}
	}
}
