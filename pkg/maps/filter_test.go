// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
)

func TestEveryBitThatIsPutIsFoundAndComesOutAlone(t *testing.T) {
	a := newMemory[bpf.NearlbAddressBits](filterBits / 64)
	for _, address := range []string{"10.96.0.1", "10.244.3.9", "fd00::1", "2001:db8::7"} {
		a16 := netip.MustParseAddr(address)
		for _, bit := range []filterBit{frontendBit(a16), backendBit(netip.AddrPortFrom(a16, 8080))} {
			if bit.isSet(a) || !bit.put(a, true) || bit.put(a, true) || !bit.isSet(a) {
				t.Errorf("bit %v of %s does not hold", bit, address)
			}
			for found := range setBits(a) {
				if found != bit {
					t.Errorf("bit %v is set instead of %v", found, bit)
				}
			}
			bit.put(a, false)
		}
	}
}

// The numbers are those of address_hash in bpf/lib/hash.h, compiled and run.
func TestTheHashOfAnAddressIsTheProgramsHash(t *testing.T) {
	for address, want := range map[string]uint32{
		"10.96.0.1": 353639, "10.244.3.9": 140827, "192.0.2.77": 39428, "fd00:10:96::a": 188084, "2001:db8::7": 67028,
		"fe80::1": 160817, "::": 0,
	} {
		if got := addressHash(address16(netip.MustParseAddr(address))); got != want {
			t.Errorf("hash of %s is %d, want %d", address, got, want)
		}
	}
}
