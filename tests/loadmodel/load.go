// SPDX-License-Identifier: Apache-2.0

// Package loadmodel says in Go by which rule programs compare the loads of two backends: bpf/lib/load.h. tests/packet holds the two together.
package loadmodel

// Load is what a node knows of the load of a backend.
type Load struct {
	Open, Weight  int
	Told          bool // what other nodes have is known:
	Others        int
	Unsure        int // as many as they may have opened since: a power of two, or 0
	Answers       int // microseconds, 0: not known
	AnswersTimely bool
}

// IsMore is the rule by which a new connection does not stay with the backend that its hash chose.
func (a Load) IsMore(b Load, asksOthers bool) bool {
	load, other := (max(a.Open, 0)+1)*b.Weight, (max(b.Open, 0)+1)*a.Weight
	if asksOthers && a.Told && b.Told {
		all, allOther := load+a.Others*b.Weight, other+b.Others*a.Weight
		if unsure := a.Unsure*b.Weight + b.Unsure*a.Weight; all > allOther+unsure || allOther > all+unsure {
			load, other = all, allOther
		}
	}
	if a.isSlower(b, 8) {
		load *= 2
	}
	if b.isSlower(a, 8) {
		other *= 2
	}
	return load > other || load == other && a.isSlower(b, 2)
}

func (a Load) isSlower(b Load, times int) bool {
	if !a.AnswersTimely || !b.AnswersTimely || b.Answers == 0 {
		return false
	}
	return a.Answers >= 1000 && a.Answers > b.Answers*times
}
