// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// network is what the kernel said last of the host's addresses, and who wants to know of it.
type network struct {
	configuring sync.Mutex // one configuration at a time, made of the last news

	mu    sync.Mutex
	last  attach.Network
	made  *hostAddresses          // of the last news; nil: to be made
	minds map[lb.ServiceName]bool // Services that the host's addresses matter to
	yield maps.Yield
}

// hostAddresses are those of lb.Node that the host's devices add to what the Node object says.
type hostAddresses struct{ host, nodePorts []netip.Addr }

// forget has them made anew: what they are made of changed.
func (n *network) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.made = nil
}

// networkChanged is attach.Options.Network: the programs know of an address before they see its packets. Services that the
// host's addresses matter to are published again.
func (l *loop) networkChanged(n attach.Network) {
	before := l.node()
	l.network.mu.Lock()
	l.network.last, l.network.made = n, nil
	concerned := []lb.ServiceName{}
	for name := range l.network.minds {
		concerned = append(concerned, name)
	}
	l.network.mu.Unlock()
	if l.configure() != nil {
		l.queue.AddRateLimited(task{kind: configure})
	}
	now := l.node()
	if slices.Equal(before.NodePortIPs, now.NodePortIPs) && slices.Equal(before.HostIPs, now.HostIPs) {
		return
	}
	if !slices.Equal(before.NodePortIPs, now.NodePortIPs) {
		l.log.Info("NodePorts answer on other addresses", "addresses", now.NodePortIPs)
	}
	for _, name := range concerned {
		l.ServiceChanged(name)
	}
	l.tell()
}

func (l *loop) lastNetwork() attach.Network {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	return l.network.last
}

// noteMinding remembers whether the host's addresses matter to a Service.
func (l *loop) noteMinding(name lb.ServiceName, minds bool) {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if minds {
		l.network.minds[name] = true
	} else {
		delete(l.network.minds, name)
	}
}

// mindsHost: node ports answer on the host's addresses, external IPs may have to be among them, and of those and of load balancers'
// addresses, and where names are asked for, the host keeps its own.
func mindsHost(in lb.Input) bool {
	s := in.Service
	return len(s.ExternalIPs)+len(s.LoadBalancerIPs)+len(in.AlsoAt) > 0 || slices.ContainsFunc(s.Ports, func(p lb.ServicePort) bool { return p.NodePort != 0 })
}

// node is the own node with the addresses that answer NodePorts: those of the Node object, and as in kube-proxy all others of
// this host.
func (l *loop) node() lb.Node {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	node := l.source.Node()
	if l.network.made == nil {
		host := without(l.network.last.Local, l.source.ServiceCIDRs())
		l.network.made = &hostAddresses{host, l.nodeConfig.NodePortIPs(node.Addresses, host)}
	}
	node.HostIPs, node.NodePortIPs = l.network.made.host, l.network.made.nodePorts
	return node
}

// without leaves out addresses of Services, which are not the host's though somebody put them on a device (kube-ipvs0).
func without(local []netip.Addr, cidrs []netip.Prefix) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(local), func(a netip.Addr) bool {
		return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// config is what every program is told. Until all Services are published the ranges of ClusterIPs stay as they are, as the
// programs drop what nobody has in them, and so do the node's addresses until they are known. A Node that is
// missing while deletions are held is such a one.
func (l *loop) config() (maps.Config, error) {
	c, err := l.tables.Config()
	if err != nil {
		return c, err
	}
	if l.tunnelPort != 0 {
		l.peers.remember(c.Tunnel)
	}
	if l.done() {
		c.ServiceCIDRs = l.source.ServiceCIDRs()
	}
	if l.nodeConfig.ProxyName != "" {
		c.ServiceCIDRs = nil // others serve what has no frontend here
	}
	node := l.node()
	if len(node.Addresses) > 0 || l.done() && !l.source.Health().Held.Any() {
		c = c.WithNode(node)
	}
	c.Loopback4, c.Loopback6, c.Netns, c.SNATPorts = l.loopback4, l.loopback6, l.namespace, l.snatPorts
	c.SNATWide, c.SNATQuiet = l.snatWide, QuietPorts(l.snatPorts)
	c.Yield = l.yield()
	network := l.lastNetwork()
	network.Local = without(network.Local, slices.Concat(c.ServiceCIDRs, l.source.ServiceCIDRs()))
	c.Devices, c.Sources = sourcesOf(network, c.Node4, c.Node6)
	c.Shortcut, c.Pods = l.passing.last().told(), nil
	if c.Tunnel.Port = l.tunnelPort; l.done() || l.tunnelPort == 0 { // before, Nodes are not listed
		c.Tunnel = l.tunnel()
	}
	for _, peer := range network.Peers {
		c.Pods = append(c.Pods, uint32(peer.Ifindex))
	}
	return c, nil
}

// sourcesOf says which addresses SNAT uses: of each device its first, or the node's where it has none; its others where that one has no port left;
// and whatever else routes may name, as far as there is room.
func sourcesOf(n attach.Network, node4, node6 netip.Addr) (map[uint32]maps.DeviceSources, []netip.Addr) {
	devices := map[uint32]maps.DeviceSources{}
	first, others := []netip.Addr{node4, node6}, []netip.Addr{}
	for _, d := range n.Devices {
		s := maps.DeviceSources{Source4: firstOf(d.Addresses, true), Source6: firstOf(d.Addresses, false), Others: d.Lasting}
		if !s.Source4.IsValid() && slices.Contains(n.Local, node4) {
			s.Source4 = node4
		}
		if !s.Source6.IsValid() && slices.Contains(n.Local, node6) {
			s.Source6 = node6
		}
		devices[uint32(d.Ifindex)] = s
		first, others = append(first, s.Source4, s.Source6), append(others, d.Addresses...)
	}
	sources := []netip.Addr{}
	for _, a := range slices.Concat(first, others, n.Local) {
		if a.IsValid() && !slices.Contains(sources, a) && len(sources) < maps.SourceLimit {
			sources = append(sources, a)
		}
	}
	return devices, sources
}

func firstOf(addresses []netip.Addr, v4 bool) netip.Addr {
	for _, a := range addresses {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}
