// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"iter"
	"sync"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/maps"
)

// reader lets status and scrapes read the tables, one after the other.
type reader struct {
	mu     sync.Mutex
	tables *maps.Reader // nil once closed: a scrape may come to its end after the agent
}

func newReader(m *bpf.NearlbMaps) (*reader, error) {
	tables, err := maps.NewReader(m)
	if err != nil {
		return nil, err
	}
	return &reader{tables: tables}, nil
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

func (r *reader) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.tables = nil }()
	return r.tables.Close()
}
