// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

// placed is a cluster with a client on each of its three nodes, and servers on some of them.
type placed struct {
	*cluster
	clients []*lab.Pod
	servers []*lab.Pod
	names   map[netip.Addr]string // of servers
	near    map[string]bool       // by node, Service and server: to be reached from there, now or before
	port    uint16                // of the client that asked last
}

// newPlaced has a server on each of these nodes: web-1 on the first one.
func newPlaced(t *testing.T, servers ...int) *placed {
	t.Helper()
	p := &placed{cluster: onLinks(t), names: map[netip.Addr]string{}, near: map[string]bool{}, port: 20000}
	for i := range 3 {
		p.clients = append(p.clients, p.pod(i, fmt.Sprintf("client-%d", i+1)))
	}
	for _, i := range servers {
		server := p.server(i, fmt.Sprintf("web-%d", i+1))
		p.servers = append(p.servers, server)
		p.names[server.V4], p.names[server.V6] = server.Name, server.Name
	}
	for i := range p.agents {
		p.awaitServing(i)
	}
	return p
}

// annotated is a Service that says by an annotation which servers are near enough. Its slices have no hints.
func (p *placed) annotated(number int, annotation, value string) *service {
	s := p.service(number)
	s.Annotations = map[string]string{"nearlb.io/" + annotation: value}
	return s
}

// check compares where each node sends its clients: want is the reason and then the servers, as "same-node web-1". Nobody is
// asked before the tables of all nodes say so.
func (p *placed) check(s *service, want ...string) {
	p.t.Helper()
	for i, n := range p.nodes {
		p.await(fmt.Sprintf("%s has of %s: %s", n.Name, s.Name, want[i]), func() bool {
			sides := p.sides(i, s)
			return len(sides) == len(ways()) && !slices.ContainsFunc(sides, func(side string) bool { return side != want[i] })
		})
	}
	for i, client := range p.clients {
		servers := strings.Fields(want[i])[1:]
		for _, w := range ways() {
			p.checkAnswers(s, client, w, servers)
			p.checkAnswers(s, client.Node, w, servers)
		}
		p.checkBytes(i, s, servers)
		if len(servers) == 0 && p.verdicts(i)["reject_no_topology_match"] == 0 {
			p.t.Errorf("%s: %s, but packets were refused for another reason: %v", client.Node.Name, want[i], p.verdicts(i))
		}
	}
}

// sides are what a node's tables have for the node's own clients, of each frontend of the Service.
func (p *placed) sides(node int, s *service) (sides []string) {
	p.read(node, func(r *maps.Reader) error {
		for row, err := range r.FrontendsOf(s.owns) {
			if err != nil {
				return err
			}
			sides = append(sides, p.text(row.Internal))
		}
		return nil
	})
	return sides
}

func (p *placed) text(side maps.SideRow) string {
	var servers []string
	for _, tier := range side.Tiers {
		for _, b := range tier.Backends {
			servers = append(servers, p.names[b.Address])
		}
	}
	slices.Sort(servers)
	return strings.Join(append([]string{side.Reason}, servers...), " ")
}

// checkAnswers is that each of the servers answers new connections of the client, and no other; without any they are refused.
func (p *placed) checkAnswers(s *service, client host, w way, servers []string) {
	p.t.Helper()
	missing := slices.Clone(servers)
	p.await(fmt.Sprintf("%s asks %s over %s, and each of %v answers", client, s.Name, w, servers), func() bool {
		for range 4 {
			answer, err := p.askAnew(s, client, w)
			right := err == nil && slices.Contains(servers, answer.Server)
			if len(servers) == 0 {
				right = refused(answer, err)
			}
			if !right {
				p.t.Fatalf("%s asks %s over %s: %+v, %v; want one of %v", client, s.Name, w, answer, err, servers)
			}
			missing = slices.DeleteFunc(missing, func(name string) bool { return name == answer.Server })
		}
		return len(missing) == 0
	})
}

// askAnew asks from a port that nobody had: datagrams from one that the kernel gives a second time go on to the server they had.
func (p *placed) askAnew(s *service, client host, w way) (lab.Answer, error) {
	p.port++
	return client.Ask(context.Background(), w.network, s.address(w.six), lab.DialOptions{LocalPort: p.port})
}

// checkBytes is that a node has exchanged bytes with these servers, and not one with those that never were to be reached from there.
func (p *placed) checkBytes(node int, s *service, servers []string) {
	p.t.Helper()
	for _, name := range servers {
		p.near[fmt.Sprint(node, s.Name, name)] = true
	}
	for key, row := range p.backends(node) {
		if row.Service != "default/"+s.Name {
			continue
		}
		name, bytes := p.names[row.Address], row.BytesTo+row.BytesFrom
		silent := bytes == 0 && row.Connections == 0
		if slices.Contains(servers, name) && silent || !p.near[fmt.Sprint(node, s.Name, name)] && !silent {
			p.t.Errorf("%s: %d connections and %d bytes with %s of %s, want %v", p.nodes[node].Name, row.Connections, bytes, key, name, servers)
		}
	}
}

// B2, B5, B14: which servers are near enough, by each annotation: while both are ready, while the second one is, and when both
// are again.
func TestAnnotationsSayWhichServersAnswer(t *testing.T) {
	p := newPlaced(t, 0, 1)
	first, second := p.servers[0], p.servers[1]
	for i, row := range []struct {
		annotation, value string
		both, secondOnly  []string
	}{
		{
			"topology-keys", "kubernetes.io/hostname,*",
			[]string{"same-node web-1", "same-node web-2", "all web-1 web-2"},
			[]string{"all web-2", "same-node web-2", "all web-2"},
		},
		{
			"topology-keys", "kubernetes.io/hostname",
			[]string{"same-node web-1", "same-node web-2", "no-topology-match"},
			[]string{"no-topology-match", "same-node web-2", "no-topology-match"},
		},
		{
			"topology-keys", "kubernetes.io/hostname, topology.kubernetes.io/zone",
			[]string{"same-node web-1", "same-node web-2", "no-topology-match"},
			[]string{"same-zone web-2", "same-node web-2", "no-topology-match"},
		},
		{
			"traffic-distribution", "PreferSameNode",
			[]string{"same-node web-1", "same-node web-2", "all web-1 web-2"},
			[]string{"same-zone web-2", "same-node web-2", "all web-2"},
		},
	} {
		s := p.annotated(i+1, row.annotation, row.value)
		s.publish(ready(first, second)...)
		p.check(s, row.both...)
		s.publish(notReady(first), lab.Endpoint{Pod: second})
		p.check(s, row.secondOnly...)
		s.publish(ready(first, second)...)
		p.check(s, row.both...)
	}
}

// B15: any label will do, and Nodes may get others while the agents run. Connections stay where they are.
func TestNewConnectionsFollowTheLabelsOfNodes(t *testing.T) {
	p := newPlaced(t, 1, 2)
	s := p.annotated(1, "topology-keys", "example.org/rack")
	for i, rack := range []string{"r1", "r1", "r2"} {
		p.label(i, "example.org/rack: "+rack)
	}
	s.publish(ready(p.servers...)...)
	p.check(s, "same-label web-2", "same-label web-2", "same-label web-3")
	open := []*lab.Conn{s.dial(p.clients[0], way{"tcp", false}), s.dial(p.clients[0], way{"tcp", true})}
	for _, step := range []struct {
		node  int
		label string
		want  []string
	}{
		{0, "example.org/rack: r2", []string{"same-label web-3", "same-label web-2", "same-label web-3"}},
		{2, "example.org/rack: r3", []string{"no-topology-match", "same-label web-2", "same-label web-3"}},
		{1, "", []string{"no-topology-match", "no-topology-match", "same-label web-3"}},
		{1, "example.org/rack: r2", []string{"same-label web-2", "same-label web-2", "same-label web-3"}},
	} {
		p.label(step.node, step.label)
		p.check(s, step.want...)
		for _, conn := range open {
			mustBe(t, conn, "web-2")
		}
	}
}

// label writes a node's Node with this label besides those that it always has.
func (p *placed) label(node int, label string) {
	p.t.Helper()
	n := p.nodes[node]
	p.writeText(nodeFile(n), fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s, labels: {kubernetes.io/hostname: %[1]s, topology.kubernetes.io/zone: %s, %s}}
status: {addresses: [{type: InternalIP, address: %s}, {type: InternalIP, address: "%s"}]}
`, n.Name, n.Options.Zone, label, n.V4, n.V6))
}
