// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"container/list"
	"time"
)

// cacheBytes bounds what a Forwarder keeps, in bytes of memory: some 12,000 answers of 300 bytes. A node's pods ask for far fewer names
// outside of the cluster, and the cluster's DNS, which is asked for what is not kept, has a cache of its own.
const cacheBytes = 8 << 20

// entryBytes is what an answer takes beside its message and its name: kept, its place in a list and in the map, and what the allocator
// rounds up. TestTheCacheTakesNoMoreMemoryThanItSays measures it.
const entryBytes = 400

// The parts of the bound: of names that were asked for once again, and of one answer.
const (
	oftenPart = 0.8
	largest   = cacheBytes / 16
)

// kept is an answer of the upstream.
type kept struct {
	key      key
	message  []byte // packed, and compressed
	received time.Time
	life     time.Duration
	failed   bool // says that the upstream could not answer: it is never told when it is old

	recheck time.Time // do not ask again before: the upstream did not answer (RFC 8767 5, failure recheck timer)
	asked   int       // times since it was received

	often bool // in cache.often
	at    *list.Element
}

func (k *kept) cost() int { return len(k.message) + len(k.key.name) + entryBytes }

func (k *kept) fresh(now time.Time) bool { return now.Sub(k.received) < k.life }

// cache keeps answers up to a number of bytes. An answer begins in a queue of its own, and leaves that for the other one when it is asked
// for again: names that are asked for once, which a client can make without end, push out each other and nothing else (segmented LRU). A
// client that asks for each of its names twice can push out the answers of others; it never makes the cache larger.
type cache struct {
	most    int // bytes
	bytes   int
	entries map[key]*kept

	once, often list.List // of *kept, last used first
	oftenBytes  int
}

func newCache(most int) *cache { return &cache{most: most, entries: map[key]*kept{}} }

// get is nil where nothing is kept, or what is kept is too old for every use.
func (c *cache) get(k key, now time.Time) *kept {
	e := c.entries[k]
	switch {
	case e == nil:
		return nil
	case now.Sub(e.received) >= e.life+longestStale:
		c.remove(e)
		return nil
	case e.often:
		c.often.MoveToFront(e.at)
	default:
		c.once.Remove(e.at)
		e.often, e.at = true, c.often.PushFront(e)
		c.oftenBytes += e.cost()
		c.settle()
	}
	e.asked++
	return e
}

// put keeps an answer in the place of the one before, which stays in its queue.
func (c *cache) put(e *kept) {
	old := c.entries[e.key]
	if old != nil {
		c.remove(old)
	}
	if len(e.message) > min(largest, c.most/2) {
		return
	}
	if e.often = old != nil && old.often; e.often {
		e.at = c.often.PushFront(e)
		c.oftenBytes += e.cost()
	} else {
		e.at = c.once.PushFront(e)
	}
	c.entries[e.key] = e
	c.bytes += e.cost()
	c.settle()
}

func (c *cache) remove(e *kept) {
	if delete(c.entries, e.key); e.often {
		c.often.Remove(e.at)
		c.oftenBytes -= e.cost()
	} else {
		c.once.Remove(e.at)
	}
	c.bytes -= e.cost()
}

// settle brings both queues below their bounds.
func (c *cache) settle() {
	for c.oftenBytes > int(oftenPart*float64(c.most)) {
		e := c.often.Back().Value.(*kept)
		c.often.Remove(e.at)
		c.oftenBytes -= e.cost()
		e.often, e.at = false, c.once.PushFront(e)
	}
	for c.bytes > c.most {
		c.remove(c.once.Back().Value.(*kept))
	}
}
