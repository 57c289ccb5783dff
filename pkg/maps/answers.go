// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Answers are the names that the programs answer without a responder (bpf/lib/dns.h). Methods may be called from any goroutine; who
// writes is one.
type Answers struct {
	mu     sync.Mutex
	names  hash[bpf.NearlbAnswerKey, bpf.NearlbAnswer]
	config hash[uint32, bpf.NearlbAnswerSettings]
}

// Answers are those of the tables. They may be used until these are closed, and fail after that.
func (t *Tables) Answers() *Answers { return t.store.answers() }

func (s *store) answers() *Answers { return &Answers{names: s.answerNames, config: s.answerConfig} }

// mostLabels is DNS_LABELS of bpf/lib/types.h: names of as many are left to the responder.
const mostLabels = len(bpf.NearlbDnsWork{}.Starts)

// ErrNamesFull says that there is no room for another name.
var ErrNamesFull = errors.New("table answers is full")

// Room is for how many names there is room.
func (a *Answers) Room() int { return int(a.names.room()) }

// Put writes what a name has in the place of what it had; label is in small letters. It tells whether the name is new.
func (a *Answers) Put(parent uint32, label string, n lb.NameAnswer) (added bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, err := answerKey(parent, label)
	if err != nil {
		return false, fmt.Errorf("put name %q: %w", label, err)
	}
	value, err := answerOf(key, n)
	if err != nil {
		return false, fmt.Errorf("put name %q: %w", label, err)
	}
	old, found, err := a.names.get(key)
	if err != nil || found && old == value {
		return false, err
	}
	if err := a.names.put(key, value); errors.Is(err, errFull) {
		return false, fmt.Errorf("put name %q: %w (%d entries)", label, ErrNamesFull, a.names.room())
	} else if err != nil {
		return false, fmt.Errorf("put name %q: %w", label, err)
	}
	return !found, nil
}

// Remove takes a name out, and tells whether it was there.
func (a *Answers) Remove(parent uint32, label string) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, err := answerKey(parent, label)
	if err != nil {
		return false, fmt.Errorf("remove name %q: %w", label, err)
	}
	if _, found, err := a.names.get(key); err != nil || !found {
		return false, err
	}
	return true, a.names.remove(key)
}

// Clear takes all names out, after Configure has said that they are not all there.
func (a *Answers) Clear() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var keys []bpf.NearlbAnswerKey
	for key := range a.names.all() {
		keys = append(keys, key)
	}
	errs := []error{a.names.err()}
	for _, key := range keys {
		errs = append(errs, a.names.remove(key))
	}
	return errors.Join(errs...)
}

// Configure writes what all answers need.
func (a *Answers) Configure(z lb.NameZones) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := bpf.NearlbAnswerSettings{Serial: z.Serial, Ttl: z.TTL, Refresh: z.Refresh, Retry: z.Retry, Expire: z.Expire}
	if z.On {
		s.On = 1
	}
	if old, found, err := a.config.get(0); err == nil && found && old == s {
		return nil
	}
	return a.config.put(0, s)
}

// Know tells whether the programs have an answer for A, or for AAAA, of a name; labels are its own in small letters. They leave it to the
// responder yet where it does not fit into what the client takes.
func (a *Answers) Know(labels []string, six bool) (bool, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	config, _, err := a.config.get(0)
	if err != nil || config.On == 0 || len(labels) == 0 || len(labels) >= mostLabels {
		return false, err
	}
	last := bpf.NearlbAnswer{Flags: uint8(bpf.NearlbAnswerFlagsANSWER_ASK_BELOW)}
	for _, label := range slices.Backward(labels) {
		key, err := answerKey(last.Number, label)
		if err != nil {
			return false, err
		}
		next, found, err := a.names.get(key)
		if err != nil || !found {
			return last.Flags&uint8(bpf.NearlbAnswerFlagsANSWER_ASK_BELOW) == 0, err
		}
		last = next
	}
	asked := bpf.NearlbAnswerFlagsANSWER_ASK_A
	if six {
		asked = bpf.NearlbAnswerFlagsANSWER_ASK_AAAA
	}
	return last.Flags&uint8(asked) == 0, nil
}

// AnswerCounts are questions that the programs answered, by type and code.
type AnswerCounts struct {
	Type, Rcode string
	Questions   uint64
}

// Answered counts the questions that the programs answered since the tables were made.
func (r *Reader) Answered() (all []AnswerCounts, err error) {
	for index := range uint32(bpf.NearlbAnswerCountANSWER_COUNT_MAX) {
		row := AnswerCounts{Type: "A", Rcode: "NOERROR"}
		if index&uint32(bpf.NearlbAnswerCountANSWER_COUNT_AAAA) != 0 {
			row.Type = "AAAA"
		}
		if index&uint32(bpf.NearlbAnswerCountANSWER_COUNT_MISSING) != 0 {
			row.Rcode = "NXDOMAIN"
		}
		count, err := r.store.answerCounters.read(index)
		if err != nil {
			return nil, fmt.Errorf("read table answer_counters: %w", err)
		}
		row.Questions = count.Questions
		all = append(all, row)
	}
	return all, nil
}

// closeNames has the programs answer nothing until somebody says that all names are there.
func (s *store) closeNames() error { return s.answers().Configure(lb.NameZones{}) }

func answerKey(parent uint32, label string) (key bpf.NearlbAnswerKey, err error) {
	var text [8 * len(key.Label)]byte
	if len(label) == 0 || len(label) >= len(text) {
		return key, fmt.Errorf("a label has 1 to %d bytes", len(text)-1)
	}
	copy(text[:], label)
	key.Parent, key.Length = parent, uint32(len(label))
	for i := range key.Label {
		key.Label[i] = binary.LittleEndian.Uint64(text[8*i:])
	}
	return key, nil
}

func answerOf(key bpf.NearlbAnswerKey, n lb.NameAnswer) (v bpf.NearlbAnswer, err error) {
	if n.A.Len()+n.AAAA.Len() > lb.MostNameAddresses {
		return v, fmt.Errorf("more than %d addresses", lb.MostNameAddresses)
	}
	v.Number, v.Count4, v.Count6 = n.Number, uint8(n.A.Len()), uint8(n.AAAA.Len())
	for flag, is := range map[bpf.NearlbAnswerFlags]bool{bpf.NearlbAnswerFlagsANSWER_ASK_A: n.A.Ask, bpf.NearlbAnswerFlagsANSWER_ASK_AAAA: n.AAAA.Ask,
		bpf.NearlbAnswerFlagsANSWER_ASK_BELOW: n.AskBelow, bpf.NearlbAnswerFlagsANSWER_MISSING: n.Missing, bpf.NearlbAnswerFlagsANSWER_ZONE: n.Zone} {
		if is {
			v.Flags |= uint8(flag)
		}
	}
	at := 0
	for _, tiers := range [][][]netip.Addr{n.A.Tiers, n.AAAA.Tiers} {
		for _, tier := range tiers {
			first := at
			for _, address := range tier {
				v.Addresses[at], v.Tiers[at] = address16(address), uint8(first<<4|len(tier))
				at++
			}
		}
	}
	v.Check = answerCheck(key, v)
	return v, nil
}

// answerCheck is the sum that dns_step of bpf/lib/dns.h makes of a key and its value.
func answerCheck(key bpf.NearlbAnswerKey, v bpf.NearlbAnswer) uint64 {
	sum := mixed(0, uint64(key.Length)<<32|uint64(key.Parent))
	for i := range key.Label {
		if 8*i >= int(key.Length) {
			break
		}
		sum = mixed(sum, key.Label[i])
	}
	sum = mixed(sum, uint64(v.Number)|uint64(v.Flags)<<32|uint64(v.Count4)<<40|uint64(v.Count6)<<48)
	sum = mixed(sum, binary.LittleEndian.Uint64(v.Tiers[:]))
	for _, address := range v.Addresses[:v.Count4+v.Count6] {
		sum = mixed(mixed(sum, binary.LittleEndian.Uint64(address.Bytes[:8])), binary.LittleEndian.Uint64(address.Bytes[8:]))
	}
	return sum
}

func mixed(sum, word uint64) uint64 {
	sum = (sum ^ word) * 0x9e3779b97f4a7c15 // HASH_A
	return sum ^ sum>>32
}
