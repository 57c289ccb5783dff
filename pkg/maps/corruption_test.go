// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"io"
	"testing"

	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

// Tables that somebody damaged are read without a fall, taken over, and mended by an audit once the objects are applied.
func TestDamagedTablesAreMended(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := memoryStore(tinySizes())
		b := newBench(t, s)
		decisions := map[lb.ServiceName]lb.Decision{}
		for range rapid.IntRange(1, 4).Draw(t, "steps") {
			if err := drawStep(t, decisions)(b); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 8).Draw(t, "damages") {
			damage(t, s)
		}
		readAll(s)
		if rapid.Bool().Draw(t, "restart") {
			b = newBench(t, s)
			reapply(t, b, decisions)
		}
		if _, err := b.Audit(true); err != nil {
			t.Fatal(err)
		}
		if drift, err := b.Audit(false); err != nil || len(drift) > 0 {
			t.Fatalf("after a repair: %v (%v)", drift, err)
		}
		b.later()
		cold := newBench(t, memoryStore(tinySizes()))
		reapply(t, cold, decisions)
		if got, want := text(t, b.Tables), text(t, cold.Tables); got != want {
			t.Fatalf("after damage and repair:\n%s\ncold start:\n%s", got, want)
		}
		consistent(t, b.Tables)
	})
}

// damage writes something odd somewhere.
func damage(t *rapid.T, s *store) {
	number := rapid.SampledFrom([]uint32{0, 1, 2, 3, 7, 255, 256, 1 << 16, 0xffffffff}).Draw(t, "number")
	arrays := map[string]*array{"records": s.records, "slots": s.slots, "backends": s.backends, "filter": s.filter}
	switch table := rapid.SampledFrom([]string{"records", "slots", "backends", "backends", "filter", "frontends", "deleted frontend",
		"names", "deleted name", "ranges"}).Draw(t, "table"); table {
	case "frontends":
		key := frontendKey{Port: uint16(number), Protocol: 6}
		if have, any := lowest(s.frontends, keyText); any {
			key = have
		}
		_ = s.frontends.put(key, number)
	case "deleted frontend":
		if key, any := lowest(s.frontends, keyText); any {
			_ = s.frontends.remove(key)
		}
	case "names":
		_ = s.names.put(nameKey{Kind: number % 5, Id: number}, rapid.SampledFrom([]string{"", "x", "default/s1:http/TCP", "a/b/TCP"}).Draw(t, "name"))
	case "deleted name":
		if key, any := lowest(s.names, func(k nameKey) string { return fmt.Sprint(k) }); any {
			_ = s.names.remove(key)
		}
	case "ranges":
		_ = s.ranges.put(rangeKey{PrefixBits: number, Service: swap32(number % 4)}, 1)
	default:
		a := arrays[table]
		element := uint32(rapid.IntRange(0, min(40, int(a.size)-1)).Draw(t, "element"))
		a.store(element, rapid.IntRange(0, a.stride-1).Draw(t, "word"), number)
	}
}

// lowest is the first key of a table by its text.
func lowest[K comparable, V any](table hash[K, V], text func(K) string) (found K, any bool) {
	for key := range table.all() {
		if !any || text(key) < text(found) {
			found, any = key, true
		}
	}
	return found, any
}

func readAll(s *store) {
	r := &Reader{store: s}
	_ = r.Dump(io.Discard)
	for range r.Fill() {
	}
	for range r.Flows() {
	}
	for range r.Affinity() {
	}
}
