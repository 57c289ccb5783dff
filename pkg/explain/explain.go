// SPDX-License-Identifier: Apache-2.0

// Package explain is the vocabulary of nearlb's output: what each verdict, reason and state is, and what to do about it. It imports
// nothing, so that other programs than nearlb have the same words; tests hold it against the code that says them.
package explain

import (
	"cmp"
	"slices"
	"strings"
)

// Kind is what a word is one of.
type Kind string

// The kinds, in the order in which they are listed.
const (
	Verdict Kind = "verdict"       // of a packet: nearlb verdicts, drops, trace
	Reason  Kind = "reason"        // of a rule or an endpoint: nearlb services, plan, why
	Note    Kind = "note"          // why a preference is not in force: likewise
	Action  Kind = "action"        // of a rule: likewise
	Tier    Kind = "tier"          // nearness: nearlb services, backends
	State   Kind = "backend state" // nearlb backends, flows, affinity
	Flow    Kind = "flow state"    // nearlb flows
	Seen    Kind = "flow seen"     // nearlb flows -o json
	Flag    Kind = "flow flag"     // nearlb flows -o wide
	Crossed Kind = "zones"         // why traffic leaves its zone: nearlb zones
	Agent   Kind = "agent state"   // nearlb status
	Failure Kind = "failure"       // of a publication: nearlb status -o json
	Change  Kind = "change"        // nearlb changes
	Cause   Kind = "cause"         // nearlb why
)

// Ejected stands in tables for the state of a backend that new connections leave out. JSON has the state, and ejectedUntil.
const Ejected = "ejected"

// Word is one entry. Text and Do may name {node}, {zone} and {region}, those of the node that says the word.
type Word struct {
	Word string `json:"word"`
	Kind Kind   `json:"kind"`
	Text string `json:"text"` // what it is, after a colon
	Do   string `json:"do"`   // what to do; "": nothing is wrong
}

// Words are all entries, by kind, in an order that makes sense.
func Words() []Word {
	return slices.Concat(verdicts, reasons, states, events)
}

// Find gives the entries of a word: written with hyphens or underscores; of a verdict with its class or without.
func Find(word string) (found []Word) {
	word = strings.ToLower(strings.ReplaceAll(strings.TrimSpace(word), "_", "-"))
	for _, w := range Words() {
		_, reason, _ := strings.Cut(w.Word, "-")
		if spelled := strings.ReplaceAll(w.Word, "_", "-"); spelled == word || w.Kind == Verdict && reason == word {
			found = append(found, w)
		}
	}
	slices.SortStableFunc(found, func(a, b Word) int { // the whole word before a part of it
		return cmp.Compare(len(a.Word), len(b.Word))
	})
	return found
}

// Text is what a word of a kind is, for a node whose names are known or not (""); "" for an unknown word.
func Text(kind Kind, word, node, zone, region string) string {
	for _, w := range Words() {
		if w.Kind == kind && w.Word == word {
			return w.On(node, zone, region).Text
		}
	}
	return ""
}

// On has the names of a node in the place of {node}, {zone} and {region}; - for those that are not known.
func (w Word) On(node, zone, region string) Word {
	of := func(what, name string) string { return what + " " + cmp.Or(name, "-") }
	return w.with(of("node", node), of("zone", zone), of("region", region))
}

// Anywhere is the entry for no certain node.
func (w Word) Anywhere() Word { return w.with("this node", "this node's zone", "this node's region") }

func (w Word) with(node, zone, region string) Word {
	names := strings.NewReplacer("{node}", node, "{zone}", zone, "{region}", region)
	w.Text, w.Do = names.Replace(w.Text), names.Replace(w.Do)
	return w
}
