// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/bypass"
	"github.com/nearlb/nearlb/pkg/lb"
	tables "github.com/nearlb/nearlb/pkg/maps"
)

// Which nodes take packets out of the tunnel is asked in the tunnel itself: the other node's programs answer, as long as they are there, serve
// and know this node. New connections go by SNAT to a node that does not answer, or says that nothing would come back; TCP connections that are
// there stay in the tunnel. They go by SNAT as well to a node that a policy of IPsec may be for: packets of the tunnel pass policies by. SNAT's do, too,
// but where they take a tunnel of the kernel's to the other node: its packets are the host's own.
// A round of hellos is sent in parts, so that answers are read meanwhile, and lasts longer where there are very many nodes.
const (
	helloEvery  = 2 * time.Second
	helloParts  = 20
	helloRate   = 250 // a second at most, per address of this node
	helloBuffer = 1 << 20
)

// roundOf is how long a round among so many nodes lasts.
func roundOf(nodes int) time.Duration {
	return max(helloEvery, time.Duration(nodes)*time.Second/helloRate)
}

// lostAfter is how long after its last answer a node does not answer.
func lostAfter(nodes int) time.Duration { return 3 * roundOf(nodes) }

// tunnelPeers are the nodes that were asked.
type tunnelPeers struct {
	port uint16
	mark uint64 // in each hello, so that nobody answers who was not asked

	mu       sync.Mutex
	sockets  helloSockets
	awake    time.Time // when this agent was known to ask others last; zero: it has not begun
	answered map[netip.AddrPort]lastAnswer
	able     map[string]ability
	met      map[string]*neighbour
	whose    map[netip.Addr][]string // names of the nodes that have an address: several where an object was left behind
	fresh    bool                    // somebody was heard, or is not heard any more, since it was judged last
	policies bypass.Policies
	sealed   []string // names of nodes that a policy of IPsec may be for, sorted
	cookies  tables.Cookies
	hearsay  []hearsayKey
	refused  error // why the file of keys was, when it was last looked at

	keyFile   string // "": nobody is asked for a cookie
	remembers bool   // what tables said at first
}

// lastAnswer is of an address.
type lastAnswer struct {
	at     time.Time
	direct bool // it takes packets whose answers go to the client
	noWay  bool // it has no way back for what it would take
}

// ability is what a node does that answers.
type ability struct{ carries, direct bool }

func newTunnelPeers(port uint16, keyFile string) *tunnelPeers {
	var mark [8]byte
	rand.Read(mark[:])
	return &tunnelPeers{port: port, keyFile: keyFile, mark: binary.BigEndian.Uint64(mark[:]), sockets: helloSockets{},
		answered: map[netip.AddrPort]lastAnswer{}, able: map[string]ability{},
		met: map[string]*neighbour{}, whose: map[netip.Addr][]string{}}
}

// TunnelStatus says which nodes packets of clients off the node can be carried to.
type TunnelStatus struct {
	OffNode lb.OffNode `json:"offNode"` // of Services that say nothing
	Port    uint16     `json:"port"`    // UDP
	Answer  int        `json:"answer"`  // other nodes that take packets
	Silent  []string   `json:"silent"`  // names of those that do not: their connections go by SNAT
	Sealed  []string   `json:"sealed"`  // names of those of them that a policy of IPsec may be for, which the tunnel would pass by
	Through []string   `json:"through"` // where dsr is asked for: names of those that take packets and cannot answer clients
	Cookie  string     `json:"cookie"`  // whether packets between nodes have one: off, on, or changing while there are two keys
	Unused  bool       `json:"unused"`  // no Service asks for it: nodes are not asked
	Leaving bool       `json:"leaving"` // it was turned off, and ends with its last connection
}

// status is of the nodes that there are. direct: dsr is asked for.
func (p *tunnelPeers) status(offNode lb.OffNode, direct bool, nodes map[string][]netip.Addr, self string) *TunnelStatus {
	s := &TunnelStatus{OffNode: offNode, Port: p.port, Silent: []string{}, Through: []string{}, Sealed: p.behindPolicies(), Cookie: cookieMode(p.shown())}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if name == self {
			continue
		}
		can := p.takes(name)
		if can.carries {
			s.Answer++
		} else {
			s.Silent = append(s.Silent, name)
		}
		if direct && can.carries && !can.direct {
			s.Through = append(s.Through, name)
		}
	}
	return s
}

// remember takes for answers, until the nodes are asked, what an earlier agent wrote of them: datagrams of those that carry would leave the
// tunnel. Later tables are this agent's own.
func (p *tunnelPeers) remember(t tables.Tunnel) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.remembers {
		return
	}
	p.remembers = true
	for name, node := range t.Nodes {
		if t.Port != p.port {
			break
		}
		if there := ends(node.Addresses); !node.Unheard && len(there) > 0 {
			p.met[name] = &neighbour{at: there[0], last: time.Now()}
		}
		if !node.Carries {
			continue
		}
		p.able[name] = ability{true, node.Direct}
		for _, a := range ends(node.Addresses) {
			p.answered[netip.AddrPortFrom(a, p.port)] = lastAnswer{at: time.Now(), direct: node.Direct}
		}
	}
}

// begin has what was remembered count from now on: nodes are asked from now on.
func (p *tunnelPeers) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at, last := range p.answered {
		p.answered[at] = lastAnswer{now, last.direct, last.noWay}
	}
}

// goesOn is told each time that a part of a round is over, among so many nodes. An agent that stood still meanwhile (SIGSTOP, a machine that was
// suspended or has no processor left) has asked nobody, and heard nobody: that time counts for no node's silence.
func (p *tunnelPeers) goesOn(now time.Time, nodes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	still := now.Sub(p.awake)
	if !p.awake.IsZero() && still > roundOf(nodes)/2 {
		for at, last := range p.answered {
			if last.at = last.at.Add(still); last.at.After(now) { // it was heard since
				last.at = now
			}
			p.answered[at] = last
		}
	}
	p.awake = now
}

// takes says what a node does, by its answers of late.
func (p *tunnelPeers) takes(node string) ability {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.able[node]
}

// isAnswer says whether a datagram answers a hello of this agent: of a node whose packets are taken here, and takes those of this one.
func (p *tunnelPeers) isAnswer(in []byte) bool {
	mark, is := answerOf(in, p.shown())
	return is && mark == p.mark
}

// ends are the addresses that packets go to and come from, one of each family.
func ends(addresses []netip.Addr) (out []netip.Addr) {
	for _, four := range []bool{true, false} {
		if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is4() == four }); i >= 0 {
			out = append(out, addresses[i])
		}
	}
	return out
}

// question is where a hello goes to, and by which socket.
type question struct {
	socket *net.UDPConn
	to     netip.AddrPort
}

// questions are those of a round, to every other node from the own address of the family, in no order. An error is that of the own
// addresses.
func (p *tunnelPeers) questions(own []netip.Addr, nodes map[string][]netip.Addr, self string, hear func(*net.UDPConn)) ([]question, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []question
	err := p.sockets.open(ends(own), 0, hear)
	for name, addresses := range nodes {
		for _, to := range ends(addresses) {
			if socket := p.sockets.from(to); socket != nil && name != self {
				all = append(all, question{socket, netip.AddrPortFrom(to, p.port)})
			}
		}
	}
	return all, err
}

// ask sends hellos. Whoever cannot be reached does not answer.
func (p *tunnelPeers) ask(questions []question) {
	hello := helloOf(p.shown(), p.mark)
	for _, q := range questions {
		_, _ = q.socket.WriteToUDPAddrPort(hello, q.to)
	}
}

// hear notes answers until the socket is closed. It tells of each node that had not answered of late, or answers otherwise.
func (p *tunnelPeers) hear(socket *net.UDPConn, news func()) {
	buffer := make([]byte, helloMost)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || !p.isAnswer(buffer[:n]) {
			continue
		}
		from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
		p.mu.Lock()
		last, now := p.answered[from], lastAnswer{time.Now(), buffer[7]&helloDirect != 0, buffer[7]&helloNoWay != 0}
		p.answered[from] = now
		p.mu.Unlock()
		first := from.Port() == p.port && p.spoke(from.Addr())
		if first || last.at.IsZero() || last.direct != now.direct || last.noWay != now.noWay {
			news()
		}
	}
}

// judge says of each node whether it answers, and whether that changed of any, or whether it is heard: one that has addresses of both families where this node
// has, too, answers on both.
func (p *tunnelPeers) judge(own []netip.Addr, nodes map[string][]netip.Addr, self string, now time.Time) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	able, lately := map[string]ability{}, make(map[netip.AddrPort]lastAnswer, len(p.answered))
	p.sealed = p.sealed[:0]
	for name, addresses := range nodes {
		asked, answered, direct, sealed := 0, 0, 0, false
		for _, to := range ends(addresses) {
			at := slices.IndexFunc(own, func(a netip.Addr) bool { return a.Is4() == to.Is4() })
			if at < 0 {
				continue
			}
			asked++
			sealed = sealed || p.policies.Concern(own[at], to)
			to := netip.AddrPortFrom(to, p.port)
			if last, ever := p.answered[to]; ever && now.Sub(last.at) <= lostAfter(len(nodes)) {
				lately[to] = last
				if !last.noWay {
					answered++
				}
				if last.direct {
					direct++
				}
			}
		}
		switch {
		case name == self || asked == 0:
		case sealed:
			p.sealed = append(p.sealed, name)
		case asked == answered:
			able[name] = ability{true, direct == asked}
		}
	}
	slices.Sort(p.sealed)
	changed = p.fresh || !maps.Equal(able, p.able)
	p.able, p.answered, p.fresh = able, lately, false
	return changed
}

// heed has what the host's policies of IPsec may be for be left to the host.
func (p *tunnelPeers) heed(policies bypass.Policies) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.policies = policies
}

func (p *tunnelPeers) behindPolicies() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.sealed...)
}

// close ends all who hear.
func (p *tunnelPeers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets.close()
}

// waysAsked are the ways to other nodes that Services have. The zero value is ready to use.
type waysAsked struct {
	mu       sync.Mutex
	wayless  map[lb.ServiceName]bool // they ask for the tunnel of an agent that has none
	tunneled map[lb.ServiceName]bool // theirs is carry or dsr
	direct   map[lb.ServiceName]bool // theirs is dsr
}

// note is told of each Service that is published. asked: what it says itself; way: what it gets.
func (w *waysAsked) note(name lb.ServiceName, asked, way lb.OffNode, tunnel bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wayless == nil {
		w.wayless, w.tunneled, w.direct = map[lb.ServiceName]bool{}, map[lb.ServiceName]bool{}, map[lb.ServiceName]bool{}
	}
	w.forgetLocked(name)
	if asked.Tunneled() && !tunnel {
		w.wayless[name] = true
	}
	if way.Tunneled() {
		w.tunneled[name] = true
	}
	if way == lb.OffNodeDSR {
		w.direct[name] = true
	}
}

func (w *waysAsked) forget(name lb.ServiceName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forgetLocked(name)
}

func (w *waysAsked) forgetLocked(name lb.ServiceName) {
	delete(w.wayless, name)
	delete(w.tunneled, name)
	delete(w.direct, name)
}

// anyDirect says whether some Service's way is dsr.
func (w *waysAsked) anyDirect() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.direct) > 0
}

// anyTunneled says whether some Service's way is the tunnel.
func (w *waysAsked) anyTunneled() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tunneled) > 0
}

// problems are by name of the Service.
func (w *waysAsked) problems() (all []lb.Problem) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range slices.SortedFunc(maps.Keys(w.wayless), lb.ServiceName.Compare) {
		all = append(all, lb.Problem{Object: name.Object(), Field: "metadata.annotations[nearlb.io/off-node]",
			Message: "this agent has no tunnel (--off-node, --carry-port): clients off the node go by SNAT"})
	}
	return all
}

// tunnelPort is 0 as long as the first list is waited for: tables that hold nothing have no room for nodes.
func (r *running) tunnelPort() uint16 {
	if r.plan.waiting {
		return 0
	}
	return r.daemon.tunnelPort()
}

// tunnelPort is that of the options, or of a tunnel that has not ended.
func (d *daemon) tunnelPort() uint16 {
	if d.options.leaving != nil && d.options.leaving.isOver() {
		return 0
	}
	return d.options.tunnelPort()
}

// tunnelAsked says whether packets go through the tunnel: it may be there for heartbeats alone. Before all Services were published nobody knows, and
// those of an earlier agent may.
func (r *running) tunnelAsked() bool {
	return r.daemon.options.OffNode.Tunneled() || !r.loop.done() || r.loop.ways.anyTunneled()
}

// followTunnel asks the other nodes until ctx ends, all of them in each round while there is something to go there, and has the programs told of
// what changed. It judges nobody before the nodes are listed: what an earlier agent wrote of them holds meanwhile.
func (r *running) followTunnel(ctx context.Context) error {
	if r.loop.tunnelPort == 0 {
		return nil
	}
	if r.loop.leaving != nil {
		return r.followLeaving(ctx)
	}
	if published, err := r.published(ctx); !published {
		return err
	}
	select {
	case <-ctx.Done():
		return nil
	case <-r.listed:
	}
	peers := r.loop.peers
	defer peers.close()
	peers.begin(time.Now())
	news := make(chan struct{}, 1)
	tell := func() {
		select {
		case news <- struct{}{}:
		default:
		}
	}
	tick := time.NewTicker(helloEvery / helloParts)
	defer tick.Stop()
	cutting := map[int]bool{}
	for ctx.Err() == nil {
		r.followKeys()
		r.followPolicies()
		asked := r.tunnelAsked()
		if asked {
			r.cutDatagrams(cutting)
		}
		own, all := r.node().Addresses, r.daemon.source.Nodes()
		peers.meet(all, time.Now())
		nodes, due := all, all
		if !asked {
			nodes, due = nil, peers.due(all, r.daemon.options.NodeName, time.Now())
		}
		questions, err := peers.questions(own, due, r.daemon.options.NodeName, func(s *net.UDPConn) { go peers.hear(s, tell) })
		if err != nil {
			r.daemon.log.Debug("ask other nodes for their tunnels", "error", err)
		}
		tick.Reset(roundOf(len(all)) / helloParts)
		for part := 0; part < helloParts && r.tunnelAsked() == asked; part++ {
			peers.ask(questions[part*len(questions)/helloParts : (part+1)*len(questions)/helloParts])
			r.awaitAnswers(ctx, tick.C, news, func() bool {
				peers.goesOn(time.Now(), len(all))
				return peers.judge(own, nodes, r.daemon.options.NodeName, time.Now())
			})
		}
	}
	return nil
}

// followPolicies reads the host's policies of IPsec; where it cannot, those that it read last hold.
func (r *running) followPolicies() {
	policies, err := bypass.ReadPolicies()
	if r.trouble("read what the tunnel would pass by", err) {
		r.daemon.log.Warn("read what the tunnel would pass by", "error", err)
	}
	if err == nil {
		r.loop.peers.heed(policies)
	}
}

// awaitAnswers judges after each of the news and once more when the part of the round is over; what changed the programs are told.
func (r *running) awaitAnswers(ctx context.Context, over <-chan time.Time, news <-chan struct{}, judge func() bool) {
	for more := true; more; {
		select {
		case <-ctx.Done():
			return
		case <-news:
		case <-over:
			more = false
		}
		if judge() {
			r.loop.tunnelChanged()
		}
	}
}

// tunnel is how packets of clients off the node get to backends on other nodes as they came.
func (l *loop) tunnel() tables.Tunnel {
	if l.tunnelPort == 0 || l.leaving != nil && l.leaving.isOver() {
		return tables.Tunnel{}
	}
	t := tables.Tunnel{Port: l.tunnelPort, Nodes: map[string]tables.TunnelNode{}, Cookies: l.peers.shown()}
	for name, addresses := range l.source.Nodes() {
		can := l.peers.takes(name)
		t.Nodes[name] = tables.TunnelNode{Addresses: addresses, Carries: can.carries, Direct: can.direct,
			Unheard: !l.peers.heard(name, addresses)}
	}
	if l.leaving != nil {
		leave(&t)
	}
	return t
}
