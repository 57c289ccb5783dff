// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"cmp"
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

// OnNodes is what is known of the backends of other nodes that take connections, by their node's name, in order of id. It takes time with the number
// of all backends, however many nodes are asked for.
func (t *Tables) OnNodes(names ...string) map[string][]Evidence {
	t.mu.Lock()
	defer t.mu.Unlock()
	asked := map[uint16]string{}
	for _, name := range names {
		if number := t.names.places[nodeName].byText[name].number(); number != 0 {
			asked[number] = name
		}
	}
	all := map[string][]Evidence{}
	if t.closed || len(asked) == 0 {
		return all
	}
	t.elsewhere(func(p *port, b *backend) {
		if name, is := asked[b.row.Node]; is {
			all[name] = append(all[name], t.evidence(Suspect{b.id, b.row.Generation}, p, AddrPortOf(b.row)))
		}
	})
	for _, of := range all {
		slices.SortFunc(of, func(a, b Evidence) int { return cmp.Compare(a.ID, b.ID) })
	}
	return all
}
