// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"time"
)

// A node brings clients through the tunnel once it has answered a hello: its programs are there then, and keep its pods from the tunnel, which
// could pass for it otherwise. So every node is asked wherever there is a tunnel, also where nothing of this one goes into it: a new one in the
// next round, one that does not answer ever more rarely, and one that did twice a day.
const (
	heardFor  = 24 * time.Hour
	askRarest = time.Minute
	askMost   = helloRate * int(helloEvery/time.Second) // of a round, where nobody else is asked
)

// neighbour is another node, as one that may bring clients.
type neighbour struct {
	at   netip.Addr    // where it answered last
	last time.Time     // when; zero: it was not heard
	next time.Time     // when it is asked, where nobody else is
	wait time.Duration // from then on until it is asked once more
}

// meet follows which nodes there are. One that has another address is another one, and who was not heard for long is not heard any more.
func (p *tunnelPeers) meet(nodes map[string][]netip.Addr, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.met {
		if _, is := nodes[name]; !is {
			delete(p.met, name)
		}
	}
	clear(p.whose)
	for name, addresses := range nodes {
		there := ends(addresses)
		for _, a := range there {
			p.whose[a] = append(p.whose[a], name)
		}
		n := p.met[name]
		if n != nil && (n.last.IsZero() || slices.Contains(there, n.at) && now.Sub(n.last) <= heardFor) {
			continue
		}
		p.met[name], p.fresh = &neighbour{}, p.fresh || n != nil
	}
}

// spoke is that a node has answered at an address. It tells whether that is news.
func (p *tunnelPeers) spoke(at netip.Addr) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, name := range p.whose[at] {
		if n := p.met[name]; n != nil {
			news = news || n.last.IsZero()
			*n = neighbour{at: at, last: now, next: now.Add(heardFor / 2)}
		}
	}
	p.fresh = p.fresh || news
	return news
}

// heard says whether a node with these addresses has answered.
func (p *tunnelPeers) heard(name string, addresses []netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.met[name]
	return n != nil && !n.last.IsZero() && slices.Contains(ends(addresses), n.at)
}

// due are those of the nodes whose time to be asked has come.
func (p *tunnelPeers) due(nodes map[string][]netip.Addr, self string, now time.Time) map[string][]netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := map[string][]netip.Addr{}
	for name, addresses := range nodes {
		n := p.met[name]
		if name == self || n == nil || now.Before(n.next) {
			continue
		}
		if len(due) == askMost {
			break
		}
		n.wait = min(max(2*n.wait, helloEvery), askRarest)
		n.next = now.Add(n.wait)
		due[name] = addresses
	}
	return due
}
