// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"iter"
	"net/netip"
	"sync"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// reader lets status and scrapes read the tables, one after the other.
type reader struct {
	mu     sync.Mutex
	tables *maps.Reader // nil before the first tables, and once closed: a scrape may come to its end after the agent
}

// open reads from these tables from now on.
func (r *reader) open(m *bpf.NearlbMaps) error {
	tables, err := maps.NewReader(m)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.tables
	r.tables = tables
	if before != nil {
		return before.Close()
	}
	return nil
}

// Verdicts is maps.Reader's.
func (r *reader) Verdicts() iter.Seq2[maps.VerdictRow, error] {
	return func(yield func(maps.VerdictRow, error) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tables != nil {
			r.tables.Verdicts()(yield)
		}
	}
}

// Fill is maps.Reader's.
func (r *reader) Fill() iter.Seq2[maps.FillRow, error] {
	return func(yield func(maps.FillRow, error) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tables != nil {
			r.tables.Fill()(yield)
		}
	}
}

// refused is maps.Reader's Refused; 0 where there are no tables.
func (r *reader) refused() (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tables == nil {
		return 0, nil
	}
	return r.tables.Refused()
}

// draining is maps.Reader's Draining.
func (r *reader) draining() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tables != nil && r.tables.Draining()
}

// abandoned is maps.Reader's Abandoned.
func (r *reader) abandoned(remote netip.AddrPort, peer maps.Peer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tables != nil && r.tables.Abandoned(remote, peer)
}

// Traffic is maps.Reader's.
func (r *reader) Traffic() iter.Seq2[maps.TrafficRow, error] {
	return func(yield func(maps.TrafficRow, error) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tables != nil {
			r.tables.Traffic()(yield)
		}
	}
}

// ServiceTraffic is maps.Reader's.
func (r *reader) ServiceTraffic() iter.Seq2[maps.ServiceTrafficRow, error] {
	return func(yield func(maps.ServiceTrafficRow, error) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tables != nil {
			r.tables.ServiceTraffic()(yield)
		}
	}
}

// Failed is maps.Reader's.
func (r *reader) Failed(once *maps.FailedOnce) iter.Seq[maps.FailedRow] {
	return func(yield func(maps.FailedRow) bool) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.tables != nil {
			r.tables.Failed(once)(yield)
		}
	}
}

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tables == nil {
		return nil
	}
	defer func() { r.tables = nil }()
	return r.tables.Close()
}

// answered is maps.Reader's Answered; nothing where there are no tables.
func (r *reader) answered() ([]maps.AnswerCounts, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tables == nil {
		return nil, nil
	}
	return r.tables.Answered()
}
