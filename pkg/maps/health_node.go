// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"slices"
)

// elsewhere goes through the backends on other nodes that take connections.
func (t *Tables) elsewhere(each func(*port, *backend)) {
	for _, service := range t.services {
		for _, p := range service.ports {
			for i := range p.backends {
				if b := &p.backends[i]; b.row.Node != 0 && b.row.Tier != tierNode && takes(&b.row) {
					each(p, b)
				}
			}
		}
	}
}

// nodeName is "" where the number is no node's.
func (t *Tables) nodeName(number uint16) string { return t.names.places[nodeName].byID[number].name() }

// NodesInUse are the names of other nodes with backends that take connections. It takes time with the number of backends.
func (t *Tables) NodesInUse() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := map[uint16]bool{}
	t.elsewhere(func(_ *port, b *backend) { used[b.row.Node] = true })
	return t.nodeNames(used)
}

// NodesLeftOut are the names of those that have backends which are left out because of their node.
func (t *Tables) NodesLeftOut() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	out := map[uint16]bool{}
	for id, o := range t.out {
		if t.isOut(id) && t.evidence(Suspect{id, o.generation}, o.port, o.address).ByNode() {
			out[read[backendRow](t.store.backends, id).Node] = true
		}
	}
	return t.nodeNames(out)
}

func (t *Tables) nodeNames(numbers map[uint16]bool) (names []string) {
	for number := range numbers {
		if name := t.nodeName(number); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// OnNode is what is known of the backends of another node that take connections, by id. It takes time with the number of all backends.
func (t *Tables) OnNode(name string) (all []Evidence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	number := t.names.places[nodeName].byText[name].number()
	t.elsewhere(func(p *port, b *backend) {
		if b.row.Node == number {
			all = append(all, t.evidence(Suspect{b.id, b.row.Generation}, p, AddrPortOf(b.row)))
		}
	})
	slices.SortFunc(all, func(a, b Evidence) int { return int(a.ID) - int(b.ID) })
	return all
}
