// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"net/netip"
	"slices"
	"time"
	"unsafe"
)

// endpoint is a backend's address and port, as in the table: network byte order.
type endpoint [18]byte

func endpointOf(a netip.AddrPort) (e endpoint) {
	bytes := a.Addr().As16()
	copy(e[:], bytes[:])
	e[16], e[17] = byte(a.Port()>>8), byte(a.Port())
	return e
}

// addrPort is where it leads to.
func (e *endpoint) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(e[:16])).Unmap(), uint16(e[16])<<8|uint16(e[17]))
}

// wire shows the address and port of a row: its first bytes.
func wire(row *backendRow) *endpoint { return (*endpoint)(unsafe.Pointer(&row.Address)) }

func (e *endpoint) compare(o *endpoint) int { return bytes.Compare(e[:], o[:]) }

// backend is one used id and what its entry says, as published. There are very many: no pointers, no spare bytes.
type backend struct {
	id    uint32
	round uint32 // the last change whose decision has it
	row   backendRow
}

// goneBackend is a removed endpoint whose id some connection may name. Its row is the port's, too.
type goneBackend struct {
	port     *port // nil: a stray
	row      backendRow
	since    time.Time // when it went
	searched time.Time // when the flows were last searched for it
}

// find gives the place of an endpoint, or where it would be.
func (p *port) find(where *endpoint) (at int, found bool) {
	if last := len(p.backends) - 1; last < 0 || wire(&p.backends[last].row).compare(where) < 0 {
		return last + 1, false
	}
	return slices.BinarySearchFunc(p.backends, where, func(b backend, e *endpoint) int { return wire(&b.row).compare(e) })
}

// backend gives the entry of an endpoint, to be used at once; nil when there is none.
func (p *port) backend(where *endpoint) *backend {
	if at, found := p.find(where); found {
		return &p.backends[at]
	}
	return nil
}

// grow makes room for exactly so many more.
func (p *port) grow(more int) {
	if cap(p.backends)-len(p.backends) < more {
		p.backends = append(make([]backend, 0, len(p.backends)+more), p.backends...)
	}
}

// register makes the mirror agree with what was written: a commit may end after any step, and an endpoint that records name
// must not pass for a removed one.
func (t *Tables) register(p *port, id uint32, written backendRow) {
	_ = t.noteLocal(id, &written)
	t.names.ref(&written)
	at, found := p.find(wire(&written))
	if found {
		t.names.unref(&p.backends[at].row)
		p.backends[at].row = written
	} else {
		p.backends = slices.Insert(p.backends, at, backend{id, t.round, written})
	}
	delete(t.gone, id)
	if gone(written.State) {
		t.gone[id] = &goneBackend{port: p, row: written, since: t.now()}
	}
}

// freeBackend makes the id of a removed endpoint free for another.
func (t *Tables) freeBackend(id uint32, g *goneBackend) {
	t.backendEnds(id, g)
	row := g.row
	row.State = stateFree
	write(t.store.backends, id, row, wordState)
	_ = t.noteLocal(id, &row)
	delete(t.tunnels.quiet, id)
	delete(t.gone, id)
	for _, k := range t.store.ofBackend(&row) {
		t.release(k)
	}
	if p := g.port; p != nil {
		if at, found := p.find(wire(&row)); found {
			t.names.unref(&p.backends[at].row)
			p.backends = slices.Delete(p.backends, at, at+1)
		}
		t.lookAt(p)
	}
	t.backendIDs.give(id)
}

// inForce says whether some record in force names the endpoint though its Service does not: one that was refused half-way, or
// a frontend that waits for its new owner.
func (g *goneBackend) inForce(id uint32) bool {
	if g.port == nil {
		return false
	}
	for _, r := range g.port.runs {
		if r.refs > 0 && slices.Contains(r.ids, id) {
			return true
		}
	}
	return false
}
