// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
)

// loadEar is what other nodes said to have to backends of this one: of each node, and added up. It takes memory by the backends of this node and the
// nodes with connections to them.
type loadEar struct {
	round uint32
	said  map[netip.Addr]map[uint64]loadSaid // by the node's address, and by the backend's hash
	sums  map[uint64]loadSum
}

// loadSaid is what was said in a round.
type loadSaid struct{ open, opened, round uint32 }

type loadSum struct{ open, opened uint64 }

func newLoadEar() loadEar {
	return loadEar{said: map[netip.Addr]map[uint64]loadSaid{}, sums: map[uint64]loadSum{}}
}

// note has a node's row count in place of what it said before.
func (e *loadEar) note(from netip.Addr, row loadRow) {
	rows := e.said[from]
	if rows == nil {
		rows = map[uint64]loadSaid{}
		e.said[from] = rows
	}
	now := loadSaid{min(row.open, loadMost), min(row.opened, loadMost), e.round}
	e.add(row.backend, rows[row.backend], -1)
	e.add(row.backend, now, 1)
	rows[row.backend] = now
}

// add counts what was said in, or (-1) out.
func (e *loadEar) add(backend uint64, s loadSaid, times int64) {
	sum := e.sums[backend]
	sum.open += uint64(int64(s.open) * times)
	sum.opened += uint64(int64(s.opened) * times)
	if e.sums[backend] = sum; sum == (loadSum{}) {
		delete(e.sums, backend)
	}
}

// forget begins a round, and ends what was said long ago.
func (e *loadEar) forget() {
	e.round++
	for from, rows := range e.said {
		maps.DeleteFunc(rows, func(backend uint64, s loadSaid) bool {
			old := e.round-s.round > loadKept
			if old {
				e.add(backend, s, -1)
			}
			return old
		})
		if len(rows) == 0 {
			delete(e.said, from)
		}
	}
}
