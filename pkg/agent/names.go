// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// NameOptions are what `nearlb agent` answers names with. Zero: it answers none.
type NameOptions struct {
	On        bool             // --dns
	Service   lb.ServiceName   // --dns-service: of the cluster's DNS, whose questions are answered here
	Port      uint16           // --dns-port, on the node's addresses
	AlsoAt    []netip.Addr     // --dns-address: where names are asked for beside the Service's ClusterIPs
	Zones     []string         // --dns-zone: of the cluster; the first is that of reverse names
	Pods      dns.PodRecords   // --dns-pods
	TTL       uint32           // --dns-ttl, seconds
	FastPath  bool             // --dns-fast-path: the programs answer what they can
	Upstreams []netip.AddrPort // --dns-upstream: who knows all other names; empty: the endpoints of Service
}

// DefaultNameOptions are those of the flags: off.
func DefaultNameOptions() NameOptions {
	return NameOptions{
		Service: lb.ServiceName{Namespace: "kube-system", Name: "kube-dns"}, Port: 10053, AlsoAt: []netip.Addr{netip.MustParseAddr("169.254.20.10")},
		Zones: []string{"cluster.local"}, Pods: dns.PodsInsecure, TTL: 5, FastPath: true,
	}
}

func (o NameOptions) check() error {
	switch {
	case !o.On:
		return nil
	case o.Service.Name == "" || o.Service.Namespace == "":
		return errors.New("--dns-service: want NAMESPACE/NAME, as kube-system/kube-dns")
	case o.Port == 0:
		return errors.New("--dns-port: want a port above zero")
	case len(o.Zones) == 0 || slices.ContainsFunc(o.Zones, func(z string) bool { return !dns.IsZone(z) }):
		return fmt.Errorf("--dns-zone %q: want domain names, as cluster.local", o.Zones)
	case !slices.Contains([]dns.PodRecords{dns.PodsDisabled, dns.PodsInsecure, dns.PodsVerified}, o.Pods):
		return fmt.Errorf("--dns-pods %q: want disabled, insecure or verified", o.Pods)
	case o.TTL > 3600:
		return fmt.Errorf("--dns-ttl %d: want seconds from 0 to 3600", o.TTL)
	}
	for _, server := range o.Upstreams {
		if slices.ContainsFunc(o.AlsoAt, func(a netip.Addr) bool { return asksAt(a, server) }) {
			return fmt.Errorf("--dns-upstream %v: this agent is asked for names there itself (--dns-address)", server)
		}
	}
	return nil
}

// asksAt tells that a further address is that of a server: questions to it would come back.
func asksAt(a netip.Addr, server netip.AddrPort) bool {
	return server.Port() == lb.NamesPort && server.Addr().Unmap() == a
}

// LeaveUpstreams takes the addresses of upstreams out of AlsoAt: for where that is the default, which yields to what was named.
func (o *NameOptions) LeaveUpstreams() {
	o.AlsoAt = slices.DeleteFunc(slices.Clone(o.AlsoAt), func(a netip.Addr) bool {
		return slices.ContainsFunc(o.Upstreams, func(server netip.AddrPort) bool { return asksAt(a, server) })
	})
}

// names is the agent's responder: what the loop puts into the view is answered on the node's own addresses, and the programs hand it
// the questions of this node's pods and of the node itself while the heart beats.
type names struct {
	options NameOptions
	view    *dns.View
	agent   *daemon
	servers *dns.Upstreams
	forward *dns.Forwarder
	news    chan struct{} // gets something when the node's addresses or devices may be others

	observer  dns.Observer
	responder atomic.Pointer[dns.Responder] // nil: nobody is answered
	beating   atomic.Bool                   // the last beat said that it lives
	asked     atomic.Bool                   // the cluster's DNS has a ClusterIP where questions come

	mu        sync.Mutex
	listening []netip.AddrPort
	synced    bool
}

func newNames(o NameOptions, node string, agent *daemon) *names {
	n := &names{options: o, agent: agent, news: make(chan struct{}, 1), servers: dns.NewUpstreams(nil)}
	n.forward = dns.NewForwarder(n.servers)
	n.observer = watched{agent.metrics.Names(n.count)}
	n.servers.Observer = n.observer
	n.view = dns.NewView(dns.ViewOptions{Node: lb.Node{Name: node}})
	return n
}

func (n *names) service() lb.ServiceName { return n.options.Service }
func (n *names) alsoAt() []netip.Addr    { return n.options.AlsoAt }

// Narrow, Set, Doubt and Remove are the view's.
func (n *names) Narrow(next *lb.NamedService) { n.view.Narrow(next) }
func (n *names) Set(s *lb.NamedService)       { n.view.Set(s) }
func (n *names) Doubt(name lb.ServiceName)    { n.view.Doubt(name) }
func (n *names) Remove(name lb.ServiceName)   { n.view.Remove(name) }

// Synced says that all names are in force.
func (n *names) Synced() {
	n.view.Synced()
	n.mu.Lock()
	n.synced = true
	n.mu.Unlock()
	n.look()
}

// look has run look at the node's addresses again.
func (n *names) look() {
	select {
	case n.news <- struct{}{}:
	default:
	}
}

// responders are where questions are answered, for the decision about the cluster's DNS.
func (n *names) responders() []netip.AddrPort {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.listening)
}

// learn takes the servers of all other names from what the packets of the cluster's DNS are decided by, unless they are named. None of
// them is the Service itself or this responder: a question that is handed on must not come back.
func (n *names) learn(d *lb.Decision) {
	n.asked.Store(slices.ContainsFunc(d.Frontends, isAsked))
	servers := serversOf(d)
	if len(n.options.Upstreams) > 0 {
		servers = slices.Clone(n.options.Upstreams)
	}
	own := n.responders()
	for i := range d.Frontends {
		own = append(own, d.Frontends[i].Key.Address)
	}
	n.servers.Set(slices.DeleteFunc(servers, func(s netip.AddrPort) bool { return slices.Contains(own, s) }))
}

// isAsked tells whether a frontend is where clients of the cluster's DNS ask.
func isAsked(f lb.Frontend) bool {
	return f.Kind == lb.KindClusterIP && f.Key.Address.Port() == lb.NamesPort
}

// serversOf are the endpoints that answer for the cluster's DNS, each once, in any order: not every node asks the same one first. The
// node's responder is none of them, though it may have ended since the decision.
func serversOf(d *lb.Decision) (servers []netip.AddrPort) {
	for i := range d.Frontends {
		f := &d.Frontends[i]
		if f.Key.Protocol != lb.UDP || !isAsked(*f) {
			continue
		}
		for _, tier := range f.Internal.Tiers {
			for _, key := range tier.Backends {
				responds := slices.ContainsFunc(d.Backends, func(b lb.Backend) bool { return b.Key == key && b.State == lb.Responder })
				if !responds && !slices.Contains(servers, key.Address) {
					servers = append(servers, key.Address)
				}
			}
		}
	}
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	return servers
}

// place is where questions are answered, and from where they are not.
type place struct {
	addresses []netip.AddrPort // the node's own, the first of each family
	outside   []int            // devices that lead off the node
}

func (p place) equal(o place) bool {
	return slices.Equal(p.addresses, o.addresses) && slices.Equal(p.outside, o.outside)
}

func (n *names) place() (p place) {
	r := n.agent.now.Load()
	network := r.lastNetwork()
	for _, v4 := range []bool{true, false} {
		for _, a := range n.agent.source.Node().Addresses {
			if a.Is4() == v4 && slices.Contains(network.Local, a) {
				p.addresses = append(p.addresses, netip.AddrPortFrom(a, n.options.Port))
				break
			}
		}
	}
	p.outside = network.Outside
	return p
}

// run answers until ctx ends: on other addresses when the node has others. What fails is tried again.
func (n *names) run(ctx context.Context) error {
	for ctx.Err() == nil {
		at := n.place()
		if len(at.addresses) == 0 || !n.ready() {
			n.await(ctx, lookAgain)
			continue
		}
		err := n.serve(ctx, at)
		if n.agent.diary.trouble("answer names", err) {
			n.agent.log.Error("answer names", "error", err)
		}
		if err != nil {
			n.await(ctx, listenAgain)
		}
	}
	return nil
}

// lookAgain is how often it is looked whether Namespaces and Pods were read, of which no event tells.
const lookAgain = time.Second

// ready tells whether all names are in force, those of Namespaces and Pods included.
func (n *names) ready() bool {
	n.mu.Lock()
	synced := n.synced
	n.mu.Unlock()
	source, named := n.agent.source.(watch.NameSource)
	return synced && named && source.NamesKnown()
}

// await waits for news, and no longer than a time.
func (n *names) await(ctx context.Context, longest time.Duration) {
	select {
	case <-ctx.Done():
	case <-n.news:
	case <-time.After(longest):
	}
}

// serve answers until ctx ends or the place is another one. At its end the programs are told first, and then questions that are
// under way are still answered.
func (n *names) serve(ctx context.Context, at place) error {
	options := n.answering()
	for _, a := range at.addresses {
		options.OwnAddresses = append(options.OwnAddresses, a.Addr())
	}
	responder := dns.NewResponder(n.view, options)
	answering, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ended := errgroup.WithContext(answering)
	var up sync.WaitGroup
	for _, a := range at.addresses {
		up.Add(1)
		ready := sync.OnceFunc(up.Done)
		server := &dns.Server{Responder: responder, Address: a.String(), Log: n.agent.log, Ready: func(string) { ready() }, NotFrom: at.outside}
		group.Go(func() error {
			defer ready()
			return server.Run(ended)
		})
	}
	up.Wait()
	if ended.Err() == nil {
		n.responder.Store(responder)
		n.listens(at.addresses)
		n.beat(ctx, ended, responder, at)
		n.beating.Store(false)
		n.responder.Store(nil)
		n.listens(nil)
	}
	stop()
	return group.Wait()
}

// answering is what is answered for.
func (n *names) answering() dns.Options {
	return dns.Options{Zones: n.options.Zones, ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: n.options.Pods, TTL: n.options.TTL,
		Zonal: true, Forwarder: n.forward, Observer: n.observer, Service: n.options.Service}
}

// listens notes on which addresses questions are answered now. The cluster's DNS is decided again by that.
func (n *names) listens(addresses []netip.AddrPort) {
	var texts []string
	for _, a := range addresses {
		texts = append(texts, a.String())
	}
	n.mu.Lock()
	n.listening = addresses
	n.mu.Unlock()
	n.agent.listens("dns", strings.Join(texts, ","))
	n.agent.now.Load().ServiceChanged(n.options.Service)
}

const (
	beatEvery = 200 * time.Millisecond // five in the time after which the programs take a responder for dead
	lastWords = 500 * time.Millisecond // that questions under way have when the responder ends
)

// beat sets the heart-beat that the programs ask for, as long as questions are answered and the node has the same addresses. Before
// each beat it reads the view, as a question would. While objects are held there is no beat, and questions go to the cluster's DNS,
// which knows what the API server knows.
func (n *names) beat(ctx, ended context.Context, r *dns.Responder, where place) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		at := uint64(0)
		if r.Lives() && !n.agent.source.Health().Held.Any() {
			at = monotonic()
		}
		n.agent.now.Load().tables.Beat(at)
		if living := at != 0; n.beating.Swap(living) != living {
			n.agent.now.Load().tell()
		}
		select {
		case <-ended.Done():
			n.agent.now.Load().tables.Beat(0)
			return
		case <-ctx.Done():
		case <-ticker.C:
			continue
		case <-n.news:
			if n.place().equal(where) {
				continue
			}
		}
		n.agent.now.Load().tables.Beat(0)
		pause(context.WithoutCancel(ctx), lastWords)
		return
	}
}

// monotonic is bpf_ktime_get_ns.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0 // never
	}
	return uint64(now.Nano())
}

// ParseServiceName reads NAMESPACE/NAME.
func ParseServiceName(text string) (lb.ServiceName, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return lb.ServiceName{}, fmt.Errorf("%q: want NAMESPACE/NAME, as kube-system/kube-dns", text)
	}
	return lb.ServiceName{Namespace: namespace, Name: name}, nil
}
