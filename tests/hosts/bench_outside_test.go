// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"os"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/lb"
)

// path is where the backend of a client off the node is, and how it gets there.
type path struct {
	*stage
	name     string
	server   *lab.Pod
	rush     *service // answers rushes
	bulk     *service // takes and gives much
	rushes   map[bool]*[2]measured
	up, down [2]measured
}

// offTheNode measures clients off the node whose backend is on this node, or on another by each way: connections that are opened and closed as
// fast as possible, and bulk either way.
func (b *bench) offTheNode(t *testing.T) {
	all := b.pathsOffTheNode(t)
	for _, serverCloses := range []bool{false, true} {
		for family, six := range []bool{false, true} {
			for range b.rounds {
				for _, p := range all {
					p.measureRush(t, &p.rushes[serverCloses][family], rush{serverCloses: serverCloses, lasts: b.lasts, at: 8}, six)
				}
			}
		}
	}
	for family, six := range []bool{false, true} {
		for range b.rounds {
			for _, p := range all {
				p.measureBulk(t, family, six)
			}
		}
	}
	b.writePaths(all)
}

// pathsOffTheNode are nearlb's: to the first node and, by each way, to the second one, to backends of their own. Then kube-proxy's.
func (b *bench) pathsOffTheNode(t *testing.T) (all []*path) {
	s := newBusyStage(t, options{agent: []string{"--carry-port", "6091"}, direct: true})
	all = append(all, s.path("this node", s.near, ""))
	for _, way := range lb.OffNodes() {
		all = append(all, s.path("another node, "+string(way), s.server(1, "far-"+string(way)), way))
	}
	if b.kubeProxy != "" {
		k := newBusyStage(t, options{kubeProxy: b.kubeProxy})
		all = append(all, k.path("this node, kube-proxy", k.near, ""), k.path("another node, kube-proxy", k.far, ""))
	}
	for _, p := range all {
		p.awaitPath()
	}
	return all
}

// newBusyStage is a stage beside others, whose client uses its ports again at once.
func newBusyStage(t *testing.T, o options) *stage {
	t.Helper()
	o.beside = true
	if mode := os.Getenv(benchXDP); mode != "" {
		o.lab.XDP, o.agent = true, append(o.agent, "--xdp", mode)
	}
	s := newStage(t, o)
	if err := s.outside.Sysctl("ipv4/tcp_tw_reuse=1", "ipv4/ip_local_port_range=1024 65535"); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stage) path(name string, server *lab.Pod, way lb.OffNode) *path {
	answerRush(s.t, server, 12)
	p := &path{stage: s, name: name, server: server, rush: s.next(), bulk: s.next(), rushes: map[bool]*[2]measured{false: {}, true: {}}}
	for _, of := range []*service{p.rush, p.bulk} {
		if way != "" {
			of.Annotations = map[string]string{"nearlb.io/off-node": string(way)}
		}
	}
	p.rush.publishAt(rushPort, ready(server)...)
	p.bulk.publish(ready(server)...)
	return p
}

// isHere says whether the backend is on the node that the client asks.
func (p *path) isHere() bool { return p.server.Node == p.stage.here }

// awaitPath waits until the path answers, and until the backend sees the client's own address if that is the way. Agents serve by then.
func (p *path) awaitPath() {
	p.t.Helper()
	for i := range p.agents {
		if p.api == nil {
			p.awaitServing(i)
		}
	}
	own := p.rush.Annotations["nearlb.io/off-node"] != "" && p.rush.Annotations["nearlb.io/off-node"] != string(lb.OffNodeSNAT)
	for _, six := range []bool{false, true} {
		to := p.by(p.rush, nodePort).address(six)
		p.await(p.name+" answers a rush", func() bool { return p.outside.Do(func() error { return rushOnce(to, false) }) == nil })
		p.await(p.name+" is the way", func() bool {
			conn := p.by(p.bulk, nodePort).dial(p.outside, way{"tcp", six})
			defer conn.Close()
			answer, err := conn.Who()
			return err == nil && (!own || answer.Client == conn.Local())
		})
	}
}

func (p *path) measureRush(t *testing.T, m *measured, r rush, six bool) {
	t.Helper()
	m.count(func() float64 {
		got := r.run(p.outside.Namespace, p.by(p.rush, nodePort).address(six))
		if got.errors > 0 {
			t.Errorf("%s: %s: %v", p.name, got, got.first)
		}
		return float64(got.connections)
	})
}

func (p *path) measureBulk(t *testing.T, family int, six bool) {
	t.Helper()
	const length = 256 // MiB
	conn := p.by(p.bulk, nodePort).dial(p.outside, way{"tcp", six})
	defer conn.Close()
	for m, transfer := range map[*measured]func(uint64, int64) error{&p.up[family]: conn.Put, &p.down[family]: conn.Get} {
		m.count(func() float64 {
			if err := transfer(1, length*megabyte); err != nil {
				t.Fatalf("%s: %v", p.name, err)
			}
			return length
		})
	}
}

func (b *bench) writePaths(all []*path) {
	for _, t := range []struct {
		title string
		of    func(*path) *[2]measured
	}{
		{"connections a second, the client closes first", func(p *path) *[2]measured { return p.rushes[false] }},
		{"connections a second, the server closes first", func(p *path) *[2]measured { return p.rushes[true] }},
		{"MiB a second to the server", func(p *path) *[2]measured { return &p.up }},
		{"MiB a second to the client", func(p *path) *[2]measured { return &p.down }},
	} {
		rows := make([]row, len(all))
		for i, p := range all {
			rows[i] = row{name: p.name, got: t.of(p), of: t.of(all[0])}
			if b.kubeProxy != "" {
				there := all[len(all)-1] // kube-proxy's, to another node
				if p.isHere() {
					there = all[len(all)-2]
				}
				rows[i].proxy = t.of(there)
			}
		}
		b.table(t.title, "nearlb's on this node", rows)
	}
}
