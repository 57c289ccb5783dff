// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/tests/privileged"
)

// C19: what somebody deleted or changed by hand is found, told and put back.
func TestAnEntryDeletedByHandIsPutBack(t *testing.T) {
	privileged.Require(t)
	m := privateMaps(t, tinySizes())
	defer m.Close()
	b := kernelBench(t, m)
	defer b.Close()
	d := made(1, active(1, 2)...)
	b.apply(t, d)
	before := text(t, b.Tables)
	key := keyOf(d.Frontends[0].Key)
	if err := m.Frontends.Delete(&key); err != nil {
		t.Fatal(err)
	}
	stranger := keyOf(d.Frontends[0].Key)
	stranger.Port = swap16(81)
	number := uint32(1)
	if err := m.Frontends.Put(&stranger, &number); err != nil {
		t.Fatal(err)
	}
	b.store.backends.store(1, wordState, 0)
	b.store.slots.store(b.frontends[key].value.Sides[0].Tiers[0].First, 0, 77)
	bits := 0 // one, where the salt has both be the same
	for _, bit := range b.knownFrontend(b.frontends[key]).bits() {
		if bit.put(b.store.filter, false) {
			bits++
		}
	}

	found, err := b.Audit(false)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, drift := range found {
		lines = append(lines, drift.String())
		if drift.Repaired {
			t.Errorf("%s was repaired without being asked", drift)
		}
	}
	got := strings.Join(lines, "\n")
	want := "backends default/s1:http/TCP 10.244.0.1:8080: is not as it was published\n" +
		"frontends 10.96.0.1:80/TCP: is missing\n" +
		"frontends 10.96.0.1:81/TCP: belongs to nothing\n" +
		fmt.Sprintf("known_addresses %d bits: are missing\n", bits) +
		"slots default/s1:http/TCP [0+5]: are not as they were published"
	if got != want {
		t.Errorf("drift\n%s\nwant\n%s", got, want)
	}
	if _, err := b.Audit(true); err != nil {
		t.Fatal(err)
	}
	if found, err := b.Audit(false); err != nil || len(found) > 0 || text(t, b.Tables) != before {
		t.Errorf("after the repair: %v (%v)\n%s", found, err, text(t, b.Tables))
	}
}
