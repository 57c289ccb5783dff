// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

// Tunnel is how packets of clients off the node get to backends on other nodes as they came; the zero value: not at all.
type Tunnel struct {
	Port  uint16 // UDP, of every node; 0: there is no tunnel
	Nodes map[string]TunnelNode

	Cookies Cookies // in packets between nodes
	Leaving bool    // it was turned off, and is there for its connections alone: no hello is answered
}

// Cookies are what nodes show each other in the tunnel, derived from a key that they share; the zero value: nobody is asked for one.
type Cookies struct {
	Asked    bool      // a packet of another node has one of Accepted
	Sent     uint64    // in this node's packets; 0: none
	Accepted [2]uint64 // while the key changes, those of both; 0: a packet without one
}

// TunnelNode is another node, or this one, by its name.
type TunnelNode struct {
	Addresses []netip.Addr // it sends from any, and gets what is sent to the first of each family
	Carries   bool         // new connections go to it through the tunnel
	Direct    bool         // it answers their clients itself where a Service asks for that
	Unheard   bool         // it has answered no hello: it may have no tunnel, and brings no new connections
}

// Required says whether a packet without a cookie is dropped.
func (c Cookies) Required() bool { return c.Asked && !slices.Contains(c.Accepted[:], 0) }

func cookiesOf(end bpf.NearlbTunnelEnd) Cookies {
	return Cookies{end.Keyed != 0, end.Cookie, end.Accepted}
}

// tunnelTables are what the tables of the tunnel should say.
type tunnelTables struct {
	end       bpf.NearlbTunnelEnd
	nodes     map[uint32]bpf.NearlbTunnelNode
	addresses map[bpf.NearlbAddress]uint32
}

// nameTunnelNodes gives each node its number, and keeps that for as long as the node is told of, or a connection names it.
func (t *Tables) nameTunnelNodes(c *Config) error {
	var errs unwritten
	for _, name := range slices.Sorted(maps.Keys(c.Tunnel.Nodes)) { // where there is no room for all, it is the same ones that have none
		if t.tunnelNodes[name] != nil {
			continue
		}
		n, fresh, err := t.names.find(nodeName, name)
		if err == nil && fresh {
			if err = t.store.names.put(n.key(), name); err != nil {
				t.names.forget(n)
				err = put("name of node "+name, err, bpf.NearlbMapNames, t.store.sizes.Names)
			}
		}
		if err != nil {
			errs.add(err)
			continue
		}
		t.names.keep(n)
		n.carried = true
		t.tunnelNodes[name] = n
	}
	for name, n := range t.tunnelNodes {
		if _, told := c.Tunnel.Nodes[name]; !told {
			t.names.leave(n)
			n.since, n.searched = t.now(), time.Time{}
			delete(t.tunnelNodes, name)
		}
	}
	return errs.join()
}

// tunnelOf is what the tables should say. The nodes must have their numbers already.
func (t *Tables) tunnelOf(c *Config) tunnelTables {
	all := tunnelTables{nodes: map[uint32]bpf.NearlbTunnelNode{}, addresses: map[bpf.NearlbAddress]uint32{}}
	if c.Tunnel.Port == 0 {
		return all
	}
	all.end = bpf.NearlbTunnelEnd{Own4: optionalAddr16(c.Node4), Own6: optionalAddr16(c.Node6), Port: swap16(c.Tunnel.Port),
		Cookie: c.Tunnel.Cookies.Sent, Accepted: c.Tunnel.Cookies.Accepted}
	if c.Tunnel.Cookies.Asked {
		all.end.Keyed = 1
	}
	if c.Tunnel.Leaving {
		all.end.Leaving = 1
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tunnel.Nodes)) { // of two nodes with one address the last one has it, each time
		node, n := c.Tunnel.Nodes[name], t.tunnelNodes[name]
		if n == nil {
			continue // it has no number
		}
		four, six := firstOfFamilies(node.Addresses)
		row := bpf.NearlbTunnelNode{Address4: optionalAddr16(four), Address6: optionalAddr16(six)}
		if node.Carries {
			row.Carries = 1
		}
		if node.Direct {
			row.Direct = 1
		}
		if node.Unheard {
			row.Unheard = 1
		}
		all.nodes[n.id] = row
		for _, a := range node.Addresses {
			all.addresses[address16(a)] = n.id
		}
	}
	return all
}

// tunnelFrom is what the tables say of this node's side.
func tunnelFrom(end bpf.NearlbTunnelEnd) Tunnel {
	return Tunnel{Port: swap16(end.Port), Nodes: map[string]TunnelNode{}, Cookies: cookiesOf(end), Leaving: end.Leaving != 0}
}

// PinnedTunnel is this node's side as an earlier agent left it, the zero value: there is none.
func PinnedTunnel(pinPath string) (Tunnel, error) {
	end, err := bpf.PinnedTunnel(pinPath)
	if err != nil || end.Port == 0 {
		return Tunnel{}, err
	}
	return tunnelFrom(end), nil
}

// tunnelNow is what the tables say.
func (t *Tables) tunnelNow() Tunnel {
	end, _, _ := t.store.tunnel.get(0)
	now := tunnelFrom(end)
	others := map[uint32][]netip.Addr{}
	for address, number := range t.store.tunnelAddresses.all() {
		others[number] = append(others[number], addrOf(address))
	}
	for number, row := range t.store.tunnelNodes.all() {
		name := t.names.places[nodeName].byID[uint16(number)].name()
		first := valid([]netip.Addr{optionalAddr(row.Address4), optionalAddr(row.Address6)})
		rest := slices.DeleteFunc(others[number], func(a netip.Addr) bool { return slices.Contains(first, a) })
		if name != "" {
			now.Nodes[name] = TunnelNode{Addresses: append(first, rest...), Carries: row.Carries != 0, Direct: row.Direct != 0, Unheard: row.Unheard != 0}
		}
	}
	return now
}

// Tunnel is the port of the tunnel between nodes, 0: there is none, what they show each other, and where the others are.
func (r *Reader) Tunnel() (port uint16, cookies Cookies, others []netip.Addr) {
	end, _, _ := r.store.tunnel.get(0)
	for _, row := range r.store.tunnelNodes.all() {
		for _, a := range []bpf.NearlbAddress{row.Address4, row.Address6} {
			if a != (bpf.NearlbAddress{}) && a != end.Own4 && a != end.Own6 {
				others = append(others, addrOf(a))
			}
		}
	}
	return swap16(end.Port), cookiesOf(end), others
}

// writeTunnel brings the tables up to date: who may be sent to before anybody is.
func (t *Tables) writeTunnel(c *Config) error {
	errs := []error{t.nameTunnelNodes(c)}
	want := t.tunnelOf(c)
	t.tunnels.follow(t, want.end.Port, want.addresses)
	errs = append(errs, t.writeLocal(c.Tunnel.Port != 0),
		settle(t.store.tunnelAddresses, want.addresses, bpf.NearlbMapTunnelAddresses),
		settle(t.store.tunnelNodes, want.nodes, bpf.NearlbMapTunnelNodes))
	if now, _, err := t.store.tunnel.get(0); err != nil || now != want.end {
		errs = append(errs, err, t.store.tunnel.put(0, want.end))
	}
	return errors.Join(errs...)
}

// settle makes a table what it should be, and goes on where an entry has no room.
func settle[K comparable, V comparable](table hash[K, V], want map[K]V, name string) error {
	live := maps.Collect(table.all())
	if err := table.err(); err != nil {
		return fmt.Errorf("read table %s: %w", name, err)
	}
	var errs unwritten
	for key := range live {
		if _, asked := want[key]; !asked {
			errs.add(table.remove(key))
		}
	}
	for key, value := range want {
		if now, found := live[key]; found && now == value {
			continue
		}
		if err := table.put(key, value); err != nil {
			errs.add(put(name, err, name, table.room()))
		}
	}
	return errs.join()
}

// tunnel compares the live tables with what was configured.
func (a *audit) tunnel() error {
	t := a.t
	if t.config == nil {
		return nil
	}
	want := t.tunnelOf(t.config)
	if now, _, err := t.store.tunnel.get(0); err != nil || now != want.end {
		if err := cmp.Or(err, a.note(bpf.NearlbMapTunnel, "port and addresses", "are not as they were configured", func() error { return t.store.tunnel.put(0, want.end) })); err != nil {
			return err
		}
	}
	return errors.Join(
		sameTable(a, t.store.tunnelNodes, want.nodes, bpf.NearlbMapTunnelNodes),
		sameTable(a, t.store.tunnelAddresses, want.addresses, bpf.NearlbMapTunnelAddresses),
		sameTable(a, t.store.localBackends, t.localOf(t.config.Tunnel.Port != 0), bpf.NearlbMapLocalBackends),
	)
}

// sameTable notes a table that is not what it should be, once.
func sameTable[K comparable, V comparable](a *audit, table hash[K, V], want map[K]V, name string) error {
	live := maps.Collect(table.all())
	if err := table.err(); err != nil || maps.Equal(live, want) {
		return err
	}
	return a.note(name, fmt.Sprintf("%d entries", len(live)), "are not those that were published", func() error { return settle(table, want, name) })
}

// localOf is what local_backends should say: the endpoints of this node that other nodes may name.
func (t *Tables) localOf(on bool) map[bpf.NearlbLocalKey]uint32 {
	all := map[bpf.NearlbLocalKey]uint32{}
	if !on {
		return all
	}
	for _, s := range t.services {
		for _, p := range s.ports {
			for i := range p.backends {
				if b := &p.backends[i]; isLocal(&b.row) {
					all[localKey(&b.row)] = b.id
				}
			}
		}
	}
	return all
}

// writeLocal begins or ends to have local_backends follow what is published.
func (t *Tables) writeLocal(on bool) error {
	if t.tunnelOn == on && t.tunnelTold {
		return nil
	}
	t.tunnelOn, t.tunnelTold = on, true
	return settle(t.store.localBackends, t.localOf(on), bpf.NearlbMapLocalBackends)
}

// noteLocal follows a backend. What finds no room is found by the audit, and its clients are refused on this node.
func (t *Tables) noteLocal(id uint32, row *backendRow) error {
	if !t.tunnelOn {
		return nil
	}
	key := localKey(row)
	now, found, err := t.store.localBackends.get(key)
	switch {
	case err != nil:
		return err
	case isLocal(row) && !(found && now == id):
		return t.store.localBackends.put(key, id)
	case !isLocal(row) && found && now == id:
		return t.store.localBackends.remove(key)
	}
	return nil
}

// isLocal is what an endpoint of this node is for as long as connections may name it.
func isLocal(row *backendRow) bool {
	return row.Tier == tierNode && row.State != stateFree && row.State != stateResponder
}

const tierNode = uint8(bpf.NearlbTierNameTIER_NODE)

func localKey(row *backendRow) bpf.NearlbLocalKey {
	return bpf.NearlbLocalKey{Address: row.Address, Port: row.Port, Service: row.Service}
}

// tunnelBackends are backends of UDP that are nodes' tunnels. They do not serve: whoever made their EndpointSlices would have this node send
// there in its own name, as one of the nodes.
type tunnelBackends struct {
	port      uint16 // as in the table; 0: there is no tunnel
	addresses map[bpf.NearlbAddress]uint32
	quiet     map[uint32]uint8 // by backend: its state but for that
}

// has says whether a backend is such a one.
func (t *tunnelBackends) has(p *port, row *backendRow) bool {
	if t.port == 0 || row.Port != t.port || p.key.Value().Protocol != lb.UDP {
		return false
	}
	_, is := t.addresses[row.Address]
	return is
}

// stateOf is what the state of a backend becomes in the table.
func (t *tunnelBackends) stateOf(p *port, row *backendRow) uint8 {
	if usable(row.State) && t.has(p, row) {
		return stateQuiet
	}
	return row.State
}

// note remembers the state that a decision gives a backend which has another one in the table.
func (t *tunnelBackends) note(id uint32, decided, written uint8) {
	if decided == written {
		delete(t.quiet, id)
		return
	}
	if t.quiet == nil {
		t.quiet = map[uint32]uint8{}
	}
	t.quiet[id] = decided
}

// follow has what is published follow where the tunnels are: flows from before leave a backend that has become one.
func (t *tunnelBackends) follow(tables *Tables, port uint16, addresses map[bpf.NearlbAddress]uint32) {
	if t.port == port && maps.Equal(t.addresses, addresses) {
		return
	}
	t.port, t.addresses = port, addresses
	for _, s := range tables.services {
		for _, p := range s.ports {
			if p.key.Value().Protocol != lb.UDP {
				continue
			}
			for i := range p.backends {
				t.settle(tables.store.backends, p, &p.backends[i])
			}
		}
	}
}

func (t *tunnelBackends) settle(table *array, p *port, b *backend) {
	if gone(b.row.State) {
		return
	}
	to := b.row
	if decided, was := t.quiet[b.id]; was {
		to.State = decided
	}
	decided := to.State
	to.State = t.stateOf(p, &to)
	t.note(b.id, decided, to.State)
	if to != b.row {
		b.row = to
		write(table, b.id, b.row, wordState)
	}
}
