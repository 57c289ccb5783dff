// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/tests/loadmodel"
)

// A cluster of nodes that have clients, and servers on nodes of their own, is played: connections come and go by chance, by the rule that programs
// compare loads by, and nodes tell each other by the messages of agents, each at its own time of the second.
type cluster struct {
	random  *rand.Rand
	now     time.Time
	members []*member
	at      map[netip.Addr]*member
	total   []int // connections of each server
	ends    endings
	sure    bool // nodes take what others told for the truth
}

type member struct {
	*loads
	address netip.Addr
	share   float64       // of the clients
	listed  []tables.Load // by its tables
	state   uint64        // of what is listed
	open    []tables.Load
	looked  int             // times that the connections of a backend were looked at
	hints   []tables.Others // that its tables have
}

// follows has its tables list these backends.
func (m *member) follows(nodes map[string][]netip.Addr, all []tables.Load) {
	m.listed = all
	m.state++
	m.follow(nodes)
}

func (m *member) Loads(since uint64) ([]tables.Load, uint64) {
	if since == m.state {
		return nil, since
	}
	return m.listed, m.state
}

func (m *member) CountOpen(all []*tables.Load) {
	m.looked += len(all)
	for _, l := range all {
		l.Open, l.Answered = m.open[l.ID].Open, m.open[l.ID].Answered
	}
}

func (m *member) CountOpened(all []*tables.Load) error {
	for _, l := range all {
		l.Connections = m.open[l.ID].Connections
	}
	return nil
}

func (m *member) TellOthers(all []tables.Others) {
	for _, o := range all {
		m.hints[o.ID] = o
	}
}

// ending is when a connection of a member ends.
type ending struct {
	at     time.Time
	of     *member
	server int
}

type endings []ending

func (e endings) Len() int           { return len(e) }
func (e endings) Less(i, j int) bool { return e[i].at.Before(e[j].at) }
func (e endings) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)        { *e = append(*e, x.(ending)) }
func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newCluster has so many nodes with clients, the n-th of which has an n-th of those of the first.
func newCluster(clients, servers int) *cluster {
	c := &cluster{random: rand.New(rand.NewPCG(1, 2)), now: time.Unix(1e9, 0), at: map[netip.Addr]*member{}, total: make([]int, servers)}
	nodes, names := nodesOf(clients + servers)
	sum := 0.0
	for i := range clients {
		sum += 1 / float64(i+1)
	}
	for i, name := range names {
		m := &member{loads: newLoads(), address: nodes[name][0], open: make([]tables.Load, servers+1), hints: make([]tables.Others, servers+1)}
		if i < clients {
			m.share = 1 / float64(i+1) / sum
		}
		m.begin(m)
		var all []tables.Load
		for id := 1; id <= servers; id++ { // server id is on the id-th of the last nodes
			node := names[clients+id-1]
			all = append(all, tables.Load{ID: uint32(id), Port: 1, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(id)}), 80), Protocol: lb.TCP,
				Node: node, Local: node == name})
		}
		m.follows(nodes, all)
		c.members, c.at[m.address] = append(c.members, m), m
	}
	return c
}

// opens has a connection of a member go to a server, for some time.
func (c *cluster) opens(m *member, server int, lasts time.Duration) {
	m.open[server].Open++
	m.open[server].Connections++
	c.total[server-1]++
	heap.Push(&c.ends, ending{c.now.Add(lasts), m, server})
}

// chooses gives the server that a new connection of a member goes to.
func (c *cluster) chooses(m *member) int {
	first := 1 + c.random.IntN(len(c.total))
	second := 1 + (first+c.random.IntN(len(c.total)-1))%len(c.total)
	load := func(id int) loadmodel.Load {
		l := loadmodel.Load{Open: int(m.open[id].Open), Weight: 1, Told: m.hints[id].ID != 0, Others: int(m.hints[id].Open)}
		if !c.sure {
			l.Unsure = atLeast(m.hints[id].Unsure)
		}
		return l
	}
	if load(first).IsMore(load(second), c.random.IntN(8) > 0) {
		return second
	}
	return first
}

// atLeast is the power of two that tables have for a number.
func atLeast(n uint32) int {
	power := 0
	for n > 0 && uint32(power) < n {
		power = max(1, 2*power)
	}
	return power
}

// tells has a member begin a round.
func (c *cluster) tells(t *testing.T, m *member) {
	all, err := m.next(c.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range all {
		if answer, ok := c.at[q.to].answer(m.address, q.loadMessage, c.now); ok {
			m.told(q.to, answer)
		}
	}
}

// play goes on for so many seconds, with so many new connections in each. It gives how many times the mean the server has that has most connections,
// on average from a second on.
func (c *cluster) play(t *testing.T, seconds, from, rate int, lasts time.Duration, tell bool) (imbalance float64) {
	const steps = 50 // of a second
	for step := range seconds * steps {
		c.now = c.now.Add(time.Second / steps)
		for len(c.ends) > 0 && c.ends[0].at.Before(c.now) {
			e := heap.Pop(&c.ends).(ending)
			e.of.open[e.server].Open--
			c.total[e.server-1]--
		}
		for i, m := range c.members {
			if tell && i%steps == step%steps {
				c.tells(t, m)
			}
			for expected := m.share * float64(rate) / steps; c.random.Float64() < expected; expected-- {
				c.opens(m, c.chooses(m), time.Duration(c.random.ExpFloat64()*float64(lasts)))
			}
		}
		sum := 0
		for _, total := range c.total {
			sum += total
		}
		if step >= from*steps {
			imbalance += float64(slices.Max(c.total)) * float64(len(c.total)) / float64(max(1, sum)) / float64((seconds-from)*steps)
		}
	}
	return imbalance
}

// A hundred nodes whose clients are as 1 to 1/100, and five servers. What others tell evens out connections that last, also where one server had
// many before others came. Where connections are over before anybody has told of them it changes nothing, and would have all nodes choose the
// same server by turns if they took it for the truth.
func TestServersOfAHundredNodesHaveAboutAsManyConnectionsEach(t *testing.T) {
	for _, row := range []struct {
		name   string
		rate   int // new connections in a second
		lasts  time.Duration
		held   int     // connections that the first server has at first, of the first node
		better float64 // so many times less imbalance at least
		herds  float64 // without a margin for what is not told yet: so many times more at least
	}{
		{"two minutes", 2, 2 * time.Minute, 0, 1.04, 0},
		{"two minutes, one server has many", 4, 2 * time.Minute, 300, 1.1, 0},
		{"a second", 200, time.Second, 0, 0.97, 1.1},
		{"a tenth of a second", 2000, time.Second / 10, 0, 0.97, 1.3},
	} {
		t.Run(row.name, func(t *testing.T) {
			play := func(tell, sure bool) float64 {
				c := newCluster(100, 5)
				c.sure = sure
				for range row.held {
					c.opens(c.members[0], 1, time.Hour)
				}
				seconds := min(180, 30+int(row.lasts.Seconds()))
				return c.play(t, seconds, seconds/2, row.rate, row.lasts, tell)
			}
			without, with, sure := play(false, false), play(true, false), play(true, true)
			t.Logf("the server that has most has %.2f times the mean without what others tell, %.2f with it, %.2f with no margin", without, with, sure)
			if with*row.better > without || sure < without*row.herds {
				t.Errorf("want %.2f times less, and %.2f times more with no margin", row.better, row.herds)
			}
		})
	}
}
