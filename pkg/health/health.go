// SPDX-License-Identifier: Apache-2.0

// Package health answers health check node ports (spec.healthCheckNodePort): an HTTP server for each Service of type
// LoadBalancer with externalTrafficPolicy Local, by which a load balancer off the cluster learns whether this node has
// endpoints of the Service. Ports, codes, header and body are kube-proxy's (pkg/proxy/healthcheck).
package health

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lb"
)

// again is how often ports that could not be listened on are tried again.
const again = 5 * time.Second

// Options are what the servers ask. All of them are required.
type Options struct {
	Addresses func() []netip.Addr // of the node, that answer NodePorts: the servers listen there
	Fresh     func() bool         // what was published is what was asked for: Services are not answered for otherwise
	Answered  func(code int)      // told of each answer
	Changed   func()              // told when Rows or Problems give something else
	Log       *slog.Logger
}

// Servers are the health check node ports of all Services. Methods may be called at any time and from any goroutine.
type Servers struct {
	Options
	again time.Duration
	news  chan struct{} // gets something when there may be something to do

	mu      sync.Mutex
	checks  map[lb.ServiceName]check
	owners  map[uint16]lb.ServiceName  // of each port: the first by name of those that ask for it
	servers map[netip.AddrPort]*server // that listen
	failed  map[netip.AddrPort]error   // where nobody could
}

// Endpoints are the addresses of local ready endpoints. A check of a node's address of one family is told of that family's, as
// kube-proxy has servers for each; who knows that a Service is not served in a family gives the other's number for both.
type Endpoints struct{ V4, V6 int }

// check is what one Service asks for.
type check struct {
	port uint16
	Endpoints
}

// New makes servers that listen nowhere before Run.
func New(o Options) *Servers {
	return &Servers{Options: o, again: again, news: make(chan struct{}, 1), checks: map[lb.ServiceName]check{},
		servers: map[netip.AddrPort]*server{}, failed: map[netip.AddrPort]error{}}
}

// Set says which port answers for a Service, and what. Port 0: none.
func (s *Servers) Set(name lb.ServiceName, port uint16, endpoints Endpoints) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, now := s.checks[name], check{port, endpoints}
	if port == 0 {
		now = check{}
	}
	if before == now {
		return
	}
	s.checks[name] = now
	if port == 0 {
		delete(s.checks, name)
	}
	if before.port != port {
		s.owners = owners(s.checks)
		s.Look()
	}
	s.Changed()
}

// owners gives a port that several Services ask for to the first by name, whatever the order of events.
func owners(checks map[lb.ServiceName]check) map[uint16]lb.ServiceName {
	all := make(map[uint16]lb.ServiceName, len(checks))
	for name, c := range checks {
		if other, taken := all[c.port]; !taken || name.Compare(other) < 0 {
			all[c.port] = name
		}
	}
	return all
}

// Lower is Set for a Service whose change could not be published: its number of endpoints does not grow, since the tables may
// lack the new ones.
func (s *Servers) Lower(name lb.ServiceName, port uint16, endpoints Endpoints) {
	s.mu.Lock()
	before := s.checks[name]
	s.mu.Unlock()
	s.Set(name, port, Endpoints{min(before.V4, endpoints.V4), min(before.V6, endpoints.V6)})
}

// Remove forgets a Service.
func (s *Servers) Remove(name lb.ServiceName) { s.Set(name, 0, Endpoints{}) }

// Look has Run look at once whether the node has other addresses.
func (s *Servers) Look() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// Run listens until ctx ends, then nowhere. Tell it by Look when the node has other addresses.
func (s *Servers) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for {
		var again <-chan time.Time // never
		if s.follow(group) {
			again = time.After(s.again)
		}
		select {
		case <-ctx.Done():
			s.closeAll()
			return group.Wait()
		case <-s.news:
		case <-again:
		}
	}
}

// follow closes the servers that nobody asks for any more, and opens those that are missing; true if some could not be.
func (s *Servers) follow(group *errgroup.Group) (failed bool) {
	addresses := s.Addresses()
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := map[netip.AddrPort]lb.ServiceName{}
	for port, name := range s.owners {
		for _, a := range addresses {
			wanted[netip.AddrPortFrom(a, port)] = name
		}
	}
	for at, server := range s.servers {
		if _, asked := wanted[at]; !asked {
			s.end(at, server)
		}
	}
	for at := range s.failed {
		if _, asked := wanted[at]; !asked {
			delete(s.failed, at)
			s.Changed()
		}
	}
	for at, name := range wanted {
		if s.servers[at] == nil {
			s.begin(group, at, name)
		}
	}
	return len(s.failed) > 0
}

// begin listens and serves.
func (s *Servers) begin(group *errgroup.Group, at netip.AddrPort, name lb.ServiceName) {
	server, err := listen(at, s)
	if err != nil {
		if before := s.failed[at]; before == nil || before.Error() != err.Error() {
			s.failed[at] = err
			s.Changed()
			s.Log.Warn("listen on health check node port", "service", name.String(), "error", err)
		}
		return
	}
	delete(s.failed, at)
	s.servers[at] = server
	s.Changed()
	s.Log.Info("answering health check node port", "service", name.String(), "address", at.String())
	group.Go(func() error {
		server.serve()
		s.ended(at, server)
		return nil
	})
}

func (s *Servers) end(at netip.AddrPort, server *server) {
	delete(s.servers, at)
	server.close()
	s.Changed()
	s.Log.Info("closed health check node port", "address", at.String())
}

// ended forgets a server that stopped by itself, so that the next look puts another in its place.
func (s *Servers) ended(at netip.AddrPort, server *server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.servers[at] == server {
		s.end(at, server)
		s.Look()
	}
}

func (s *Servers) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, server := range s.servers {
		s.end(at, server)
	}
}

// answer is what a port says on addresses of a family: whose it is and the number of local ready endpoints. False: nobody's
// any more.
func (s *Servers) answer(at netip.AddrPort) (name lb.ServiceName, endpoints int, asked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, asked = s.owners[at.Port()]
	if at.Addr().Is4() {
		return name, s.checks[name].V4, asked
	}
	return name, s.checks[name].V6, asked
}
