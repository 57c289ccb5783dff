// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nearlb/nearlb/pkg/bpf"
)

// Carrier brings over what is in the tables of another layout, while their programs go on and, later, these tables' as well:
// first everything that an agent wrote, with all its ids (Tables), then connections, as often as wanted (Connections).
type Carrier struct {
	store  *store
	former []*bpf.Former
	known  []*identities          // of each former, once they are asked for
	wrote  map[uint32]carriedFlow // by the place of the flow

	unprepared error // why Peers cannot be carried
}

// Carried counts what Connections brought over, or left behind: those whose endpoint or address is not known here, and those
// without room. Their next packet from the client makes them again, by hash.
type Carried struct{ Flows, Affinity, Sockets, Left int }

// NewCarrier wants the tables that are carried to, and where from: the one in force last first.
func NewCarrier(m *bpf.NearlbMaps, former []*bpf.Former) (*Carrier, error) {
	s, err := kernelStore(m, false)
	if err != nil {
		return nil, err
	}
	c := &Carrier{store: s, former: slices.Clone(former), known: make([]*identities, len(former)), wrote: map[uint32]carriedFlow{}}
	for _, f := range former {
		if err := f.PrepareSockets(m.Peers); err != nil {
			c.unprepared = errors.Join(c.unprepared, err)
		}
	}
	return c, nil
}

// Close gives the mapped memory back.
func (c *Carrier) Close() error { return c.store.close() }

// Tables fills new tables with what the agent of the layout in force has written, ids and all. An error says that it cannot
// be read: then the tables are of no use.
func (c *Carrier) Tables() error {
	f := c.former[0]
	err := errors.Join(
		f.Needs("frontends"),
		f.Needs("names", "text"),
		f.Needs("config", "seed"),
		f.Needs("records", "key", "service", "kind", "flags", "affinity", "sides.action", "sides.tiers.first", "sides.tiers.count"),
		f.Needs("backends", "address", "port", "state", "generation", "service", "member"),
		f.Needs("slots"),
	)
	if err != nil {
		return err
	}
	for _, step := range []func(*bpf.Former) error{c.settings, c.backends, c.health, c.slots, c.records, c.hashes, c.filter, c.counters} {
		if err := step(f); err != nil {
			return err
		}
	}
	return nil
}

func (c *Carrier) settings(f *bpf.Former) error {
	return bpf.Rows(f, "config", func(_ uint32, s bpf.NearlbSettings) error {
		s.Schema = bpf.SchemaVersion
		write(c.store.settings, 0, s)
		return nil
	})
}

func (c *Carrier) backends(f *bpf.Former) error {
	return copyRows[backendRow](f, "backends", c.store.backends)
}

// health has the evidence and the weights of backends, but not their connections: those count when Recount finds them here.
func (c *Carrier) health(f *bpf.Former) error {
	return bpf.Rows(f, "backend_health", func(id uint32, h healthRow) error {
		h.Open = 0
		if c.store.health.in(id, 1) {
			write(c.store.health, id, h)
		}
		return nil
	})
}

func (c *Carrier) records(f *bpf.Former) error {
	return copyRows[recordValue](f, "records", c.store.records)
}

// copyRows keeps every element in its place.
func copyRows[T any](f *bpf.Former, table string, to *array) error {
	return bpf.Rows(f, table, func(index uint32, value T) error {
		if index >= to.size {
			return fmt.Errorf("element %d has no place", index)
		}
		write(to, index, value)
		return nil
	})
}

// slots are carried one by one: the number of them in an element may differ.
func (c *Carrier) slots(f *bpf.Former) error {
	return f.Words("slots", func(index, id uint32) {
		if id != 0 && index < c.store.slots.size {
			c.store.slots.store(index, 0, id)
		}
	})
}

func (c *Carrier) hashes(f *bpf.Former) error {
	return errors.Join(
		bpf.Rows(f, "names", func(key nameKey, value bpf.NearlbNameValue) error { return c.store.names.put(key, nameText(value)) }),
		bpf.Rows(f, "source_ranges", c.store.ranges.put),
		bpf.Rows(f, "devices", c.store.devices.put),
		bpf.Rows(f, "tunnel", c.store.tunnel.put),
		bpf.Rows(f, "tunnel_nodes", c.store.tunnelNodes.put),
		bpf.Rows(f, "tunnel_addresses", c.store.tunnelAddresses.put),
		bpf.Rows(f, "local_backends", c.store.localBackends.put),
		bpf.Rows(f, "frontends", c.store.frontends.put),
	)
}

// filter has the bits of connections of removed Services as well, where the other layout's hashes are these (layouts before 3 had
// others, under another name).
func (c *Carrier) filter(f *bpf.Former) error {
	err := bpf.Rows(f, "known_addresses", func(index uint32, bits bpf.NearlbKnownBits) error {
		if index < c.store.filter.size {
			write(c.store.filter, index, bits)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.fillFilter()
}

// fillFilter sets the bits of every entry that was carried over.
func (c *Carrier) fillFilter() error {
	for id := uint32(1); id < c.store.backends.size; id++ {
		if b := read[backendRow](c.store.backends, id); b.State != stateFree {
			for _, k := range c.store.ofBackend(&b) {
				k.put(c.store.filter)
			}
		}
	}
	for key, number := range c.store.frontends.all() {
		if number < c.store.records.size {
			record := read[recordValue](c.store.records, number)
			c.store.frontendKnown(key, &record).put(c.store.filter)
		}
	}
	return c.store.frontends.err()
}

// counters go on where they were. Those of verdicts are numbered as the verdicts are: another number of these begins anew.
func (c *Carrier) counters(f *bpf.Former) error {
	return errors.Join(
		carryCounters(f, "service_counters", c.store.serviceCounters),
		carryCounters(f, "backend_counters", c.store.backendCounters),
	)
}

func carryCounters[T any](f *bpf.Former, table string, to counters[T]) error {
	kernel, ok := to.(*kernelCounters[T])
	if !ok {
		return nil
	}
	return bpf.CounterRows(f, table, func(index uint32, values []T) error {
		if index >= kernel.table.MaxEntries() {
			return nil
		}
		return kernel.table.Put(index, values)
	})
}

// Connections brings over flows, affinity, and what is remembered of sockets. Those that are here already are brought up to
// date; where the two differ in their backend, the one that had a packet later is right. Programs of both layouts may go on.
func (c *Carrier) Connections() (done Carried, err error) {
	for i, f := range slices.Backward(c.former) {
		if c.known[i] == nil {
			known, e := identify(f, c.store)
			if e != nil {
				err = errors.Join(err, e)
				continue
			}
			c.known[i] = known
		}
		err = errors.Join(err, c.known[i].findNodes(f), c.flows(f, c.known[i], &done), c.affinity(f, c.known[i], &done), c.sockets(f, c.known[i], &done), c.routed(f))
	}
	return done, err
}

// routed brings over that clients off the node come by ClusterIPs. A layout that does not tell marked no backend as one of ClusterIPs only,
// either: direct connections to any that its connections name are remembered. Programs look for connections of the host's sockets that went to
// other backends in any case, as one may begin in the other tables next: what its backend answers is asked of the programs there. A search that
// has not seen what was carried just now takes that back no more than one that has not seen what began here (leaveHost).
func (c *Carrier) routed(f *bpf.Former) error {
	return bpf.Rows(f, "config", func(_ uint32, s bpf.NearlbSettings) error {
		c.look(s.Routed)
		return nil
	})
}

func (c *Carrier) look(routed uint8) {
	writeModes(c.store.settings, func(m *modes) { m.routed |= routed&routedHere | routedHost | routedBegan })
}

func (c *Carrier) affinity(f *bpf.Former, known *identities, done *Carried) error {
	if err := f.Needs("affinity", "backend", "generation", "touched"); err != nil {
		return err
	}
	return bpf.Rows(f, "affinity", func(key bpf.NearlbAffinityKey, value bpf.NearlbAffinityValue) error {
		service, b := known.service(key.Service), known.backend(value.Backend, value.Generation)
		if service == 0 || b == nil {
			done.Left++
			return nil
		}
		key.Service, value.Backend, value.Generation = service, b.id, b.value.Generation
		have, found, err := c.store.affinity.get(key)
		if err != nil || found && have.Touched >= value.Touched {
			return err
		}
		done.Affinity++
		return c.store.affinity.put(key, value)
	})
}

// sockets are those that send datagrams to several.
func (c *Carrier) sockets(f *bpf.Former, known *identities, done *Carried) error {
	return bpf.Rows(f, "socks", func(key bpf.NearlbSockKey, value bpf.NearlbSockValue) error {
		service, b := known.service(value.Service), known.backend(value.Backend, value.Generation)
		if service == 0 || b == nil {
			done.Left++
			return nil
		}
		value.Service, value.Backend, value.Generation = service, b.id, b.value.Generation
		if _, found, err := c.store.socks.get(key); err != nil || found {
			return err
		}
		done.Sockets++
		return c.store.socks.put(key, value)
	})
}

// Peers brings over what connected sockets keep with themselves. It names ids, and so comes over where ids are the same. Call
// it when the other layout's programs write no more. everywhere calls a function in each network namespace that has such sockets.
func (c *Carrier) Peers(everywhere func(func() error) error) error {
	err := c.unprepared
	for i, f := range c.former {
		if c.known[i] != nil && c.known[i].same {
			err = errors.Join(err, everywhere(f.CarrySockets))
		}
	}
	return err
}
