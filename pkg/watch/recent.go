// SPDX-License-Identifier: Apache-2.0

package watch

import "strconv"

// recentEvents is how many events of a kind are remembered.
const recentEvents = 1024

// recent remembers the versions of objects that a watch told of last, those of deleted ones too, so that an event that comes late
// or again does not bring the past back. API servers number all their changes upwards (Kubernetes KEP-5504); what has no
// number is believed.
type recent struct {
	list     uint64               // version of the last list
	versions map[objectKey]uint64 // of the last events
	order    []objectKey          // those events, a ring
	next     int
}

// relisted forgets everything: a list may be of an earlier version than what came before, after a restore from a backup.
func (r *recent) relisted(version string) {
	*r = recent{list: number(version)}
}

// late tells whether a newer state of the object is known. If not, it remembers this one.
func (r *recent) late(key objectKey, version string) bool {
	v := number(version)
	if v == 0 {
		return false
	}
	known, told := r.versions[key]
	if v < known || v < r.list {
		return true
	}
	if r.versions == nil {
		r.versions = map[objectKey]uint64{}
	}
	r.versions[key] = v
	if told {
		return false
	}
	if len(r.order) < recentEvents {
		r.order = append(r.order, key)
		return false
	}
	delete(r.versions, r.order[r.next])
	r.order[r.next] = key
	r.next = (r.next + 1) % recentEvents
	return false
}

// number is a resource version as a number; 0 if it is none.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
