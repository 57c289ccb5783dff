// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"time"
)

// loadEar is what other nodes said to have to backends of this one: of each node, and added up.
type loadEar struct {
	said map[netip.Addr]map[uint64]loadSaid // by the node's address, and by the backend's hash
	sums map[uint64]loadSum
}

type loadSaid struct {
	loadRow
	at time.Time
}

type loadSum struct{ open, opened uint64 }

func newLoadEar() loadEar {
	return loadEar{map[netip.Addr]map[uint64]loadSaid{}, map[uint64]loadSum{}}
}

// note has a node's row count in place of what it said before; not one more than a node may tell of.
func (e loadEar) note(from netip.Addr, row loadRow, now time.Time) {
	rows := e.said[from]
	if rows == nil {
		rows = map[uint64]loadSaid{}
		e.said[from] = rows
	}
	was, known := rows[row.backend]
	if !known && len(rows) >= loadKeptRows {
		return
	}
	row.open, row.opened = min(row.open, loadMost), min(row.opened, loadMost)
	e.add(was.loadRow, -1)
	e.add(row, 1)
	rows[row.backend] = loadSaid{row, now}
}

// add counts a row in, or (-1) out.
func (e loadEar) add(row loadRow, times int64) {
	sum := e.sums[row.backend]
	sum.open += uint64(int64(row.open) * times)
	sum.opened += uint64(int64(row.opened) * times)
	if e.sums[row.backend] = sum; sum == (loadSum{}) {
		delete(e.sums, row.backend)
	}
}

// forget ends what was said long ago.
func (e loadEar) forget(now time.Time) {
	for from, rows := range e.said {
		maps.DeleteFunc(rows, func(_ uint64, s loadSaid) bool {
			old := now.Sub(s.at) > loadKept
			if old {
				e.add(s.loadRow, -1)
			}
			return old
		})
		if len(rows) == 0 {
			delete(e.said, from)
		}
	}
}
