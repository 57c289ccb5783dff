// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	wire "github.com/miekg/dns"
	"pgregory.net/rapid"
)

// Names that are asked for once each, as many as a client can make, leave the answers that others ask for again and again.
func TestAFloodOfNamesLeavesWhatIsPopular(t *testing.T) {
	u := &countingUpstream{answer: []string{"@ 600 IN A 192.0.2.1"}}
	f := NewForwarder(u)
	f.cache = newCache(100_000)
	ask := func(name string) Way {
		_, way, err := f.Exchange(t.Context(), new(wire.Msg).SetQuestion(name, wire.TypeA), netip.Addr{}, true)
		if err != nil {
			t.Fatal(err)
		}
		return way
	}
	popular := func(i int) string { return fmt.Sprintf("popular-%d.example.com.", i) }
	for range 2 {
		for i := range 100 {
			ask(popular(i))
		}
	}
	for i := range 10_000 {
		ask(fmt.Sprintf("random-%d.example.com.", i))
		if _, bytes := f.Kept(); bytes > 100_000 {
			t.Fatalf("%d bytes are kept", bytes)
		}
	}
	for i := range 100 {
		if way := ask(popular(i)); way != WayCached {
			t.Errorf("%s: %s", popular(i), way)
		}
	}
}

// The bound is one of memory: a full cache takes no more, and the count is not far above.
func TestTheCacheTakesNoMoreMemoryThanItSays(t *testing.T) {
	for _, message := range []int{40, 100, 300, 1200} {
		used := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc
		}
		before := used()
		c := newCache(cacheBytes)
		for i := range 3 * cacheBytes / (message + entryBytes) {
			k := key{name: fmt.Sprintf("a-name-of-usual-length-%d.example.com.", i), qtype: wire.TypeA}
			c.put(&kept{key: k, message: bytes.Clone(make([]byte, message)), received: time.Now(), life: time.Hour})
			c.get(k, time.Now())
		}
		took := int(used() - before)
		runtime.KeepAlive(c)
		if c.bytes > cacheBytes || took > cacheBytes {
			t.Errorf("messages of %d bytes: %d answers take %d bytes, counted as %d, bound %d", message, len(c.entries), took, c.bytes, cacheBytes)
		}
	}
}

// However answers come and are asked for, both queues hold what the map has, and their bounds.
func TestTheCachesQueuesHoldWhatItHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCache(20 * (entryBytes + 100))
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			k := key{name: fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "name"))}
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				c.put(&kept{key: k, message: make([]byte, rapid.IntRange(0, 6000).Draw(t, "size")), received: now, life: time.Hour})
			case 1, 2:
				c.get(k, now)
			default:
				now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, longestStale}).Draw(t, "time"))
			}
			bytes, often := 0, 0
			for _, e := range c.entries {
				if bytes += e.cost(); e.often {
					often += e.cost()
				}
			}
			if bytes != c.bytes || often != c.oftenBytes || bytes > c.most || often > c.most*4/5 || c.once.Len()+c.often.Len() != len(c.entries) {
				t.Fatalf("%d bytes counted as %d, of these %d as %d, in %d and %d of %d", bytes, c.bytes, often, c.oftenBytes, c.once.Len(), c.often.Len(), len(c.entries))
			}
		}
	})
}
