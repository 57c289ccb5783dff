// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"iter"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Reader reads live tables for people, with names in place of ids. It needs no agent, writes nothing and may run while the
// agent and the programs write: what it reads is then each row of some moment, not all of the same. A damaged entry comes as
// an error, and the walk goes on.
type Reader struct {
	store *store
	own   bool
}

// NewReader maps tables into memory, read-only. They must stay open as long as the reader is used.
func NewReader(m *bpf.NearlbMaps) (*Reader, error) {
	s, err := kernelStore(m, true)
	if err != nil {
		return nil, err
	}
	return &Reader{store: s, own: true}, nil
}

// Reader reads the tables that t publishes to. It is valid until t is closed.
func (t *Tables) Reader() *Reader { return &Reader{store: t.store} }

// Close gives the mapped memory back.
func (r *Reader) Close() error {
	if !r.own {
		return nil
	}
	return r.store.close()
}

// view is what one walk needs to name ids.
type view struct {
	*store
	texts map[nameKey]string
	tiers map[span][]TierBackendRow
	away  map[span][]bpf.NearlbBackend // of these, the backends on other nodes
}

func (r *Reader) view() (*view, error) {
	v := &view{store: r.store.again(), texts: map[nameKey]string{}, tiers: map[span][]TierBackendRow{}, away: map[span][]bpf.NearlbBackend{}}
	for key, text := range v.names.all() {
		v.texts[key] = text
	}
	if err := v.names.err(); err != nil {
		return nil, fmt.Errorf("read table names: %w", err)
	}
	return v, nil
}

// port names a service port; an id without a name gets its number.
func (v *view) port(id uint32) lb.PortName {
	if name, err := parsePortName(v.texts[nameKey{Kind: servicePortName, Id: id}]); err == nil {
		return name
	}
	return lb.PortName{Service: lb.ServiceName{Namespace: "?", Name: fmt.Sprint(id)}}
}

// kept is keep by the id of a service port. It asks for each once: many backends and frontends have the same.
func (v *view) kept(keep func(lb.PortName) bool) func(uint32) bool {
	known := map[uint32]bool{}
	return func(id uint32) bool {
		keeps, asked := known[id]
		if !asked {
			keeps = keep(v.port(id))
			known[id] = keeps
		}
		return keeps
	}
}

func (v *view) node(b *backendRow) string {
	return v.texts[nameKey{Kind: nodeName, Id: uint32(b.Node)}]
}
func (v *view) zone(b *backendRow) string {
	return v.texts[nameKey{Kind: zoneName, Id: uint32(b.Zone)}]
}

// backend reads an entry that may change hands meanwhile: its generation must be the same before and after.
func (v *view) backend(id uint32) (b backendRow, ok bool) {
	if id == 0 || id >= v.backends.size {
		return b, false
	}
	for range readAttempts {
		before := v.backends.load(id, wordMembership)
		b = read[backendRow](v.backends, id)
		if v.backends.load(id, wordMembership) == before {
			break
		}
	}
	return b, b.State != stateFree
}

// rows makes an iterator of a walk that collects: rows in order, then the errors.
func rows[T any](r *Reader, collect func(*view) ([]T, []error), compare func(a, b *T) int) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		v, err := r.view()
		if err != nil {
			yield(none, err)
			return
		}
		all, failed := collect(v)
		order := make([]*T, len(all))
		for i := range all {
			order[i] = &all[i]
		}
		slices.SortStableFunc(order, compare)
		for _, row := range order {
			if !yield(*row, nil) {
				return
			}
		}
		for _, err := range failed {
			if !yield(none, err) {
				return
			}
		}
	}
}
