// SPDX-License-Identifier: Apache-2.0

// Package dns answers the names of Kubernetes' Services and Pods: the specification of kubernetes/dns 1.1.0, and where that is silent
// what CoreDNS answers (docs/dns.md lists the differences). Answers are made from a View by a function that knows no socket.
package dns

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// View is what names are answered from: Services with their endpoints, Namespaces and Pods. What is asked for often is indexed; the
// records of a Service are made when it changes. All methods may be called from any goroutine.
type View struct {
	options ViewOptions

	mu         sync.RWMutex
	zoned      bool // the options named this node's zone
	synced     bool
	serial     uint32
	services   map[lb.ServiceName]*entry
	namespaces map[string]*namespace
	clusterIPs map[netip.Addr][]lb.ServiceName // in order
	endpoints  map[netip.Addr][]lb.ServiceName // Services that have a ready endpoint of the address, in order
	pods       map[netip.Addr]map[lb.PodName]bool
	podsByName map[lb.PodName][]netip.Addr
	doubtful   map[lb.ServiceName]bool // exist, and are not in force
	parents    map[netip.Prefix]int    // addresses with reverse names below each name of the reverse trees; nil: not wanted
}

// ViewOptions are what a View needs to know of its node and of how names are made.
type ViewOptions struct {
	Node     lb.Node // the clients' own: its name, zone and region say what is near
	PodNames bool    // an endpoint without hostname is named by its Pod (CoreDNS endpoint_pod_names)
	Reverse  bool    // reverse zones are answered
}

// namespace exists if an object of it does, or if it was said to.
type namespace struct {
	declared bool
	objects  int
}

// NewView is an empty view that was not told everything yet.
func NewView(o ViewOptions) *View {
	v := &View{
		options: o, zoned: o.Node.Zone != "", serial: uint32(time.Now().Unix()),
		services: map[lb.ServiceName]*entry{}, namespaces: map[string]*namespace{},
		clusterIPs: map[netip.Addr][]lb.ServiceName{}, endpoints: map[netip.Addr][]lb.ServiceName{},
		pods: map[netip.Addr]map[lb.PodName]bool{}, podsByName: map[lb.PodName][]netip.Addr{},
	}
	if o.Reverse {
		v.parents = map[netip.Prefix]int{}
	}
	return v
}

// Synced says that the view was told of everything once. Before that a missing name is no proof that there is none.
func (v *View) Synced() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.synced = true
}

// Set puts a Service in force in the place of what it was.
func (v *View) Set(s lb.NamedService) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(s.Name, newEntry(s, v.options)) // the options change with the Node
}

// Narrow takes those endpoints of a Service out that its next state has not: before the tables of packets lose them. Set follows.
func (v *View) Narrow(next lb.NamedService) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if old := v.services[next.Name]; old != nil {
		v.replace(next.Name, newEntry(old.service.Within(next), v.options))
	}
}

// Doubt says that there is a Service whose packets cannot be served yet, until Set or Remove. Its names are answered with SERVFAIL, not
// with NXDOMAIN: that would be kept by clients, and lead them on along their search list. One that has names keeps those.
func (v *View) Doubt(name lb.ServiceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.services[name] != nil || v.doubtful[name] {
		return
	}
	v.modified()
	if v.doubtful == nil {
		v.doubtful = map[lb.ServiceName]bool{}
	}
	v.doubtful[name] = true
	v.count(name.Namespace, 1)
}

// Remove takes a Service out. An unknown one is no error.
func (v *View) Remove(name lb.ServiceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(name, nil)
}

func (v *View) replace(name lb.ServiceName, next *entry) {
	v.modified()
	if v.doubtful[name] {
		v.count(name.Namespace, -1)
		delete(v.doubtful, name)
	}
	if old := v.services[name]; old != nil {
		v.count(name.Namespace, -1)
		v.unindex(v.clusterIPs, old.clusterIPs, name)
		v.unindex(v.endpoints, old.addresses, name)
		delete(v.services, name)
	}
	if next != nil {
		v.count(name.Namespace, 1)
		v.index(v.clusterIPs, next.clusterIPs, name)
		v.index(v.endpoints, next.addresses, name)
		v.services[name] = next
	}
}

// Names are the names of all Services and of their endpoints in a zone, in order. Those of a Service are read when its turn comes.
func (v *View) Names(zone string) iter.Seq[string] {
	zone = absolute([]string{zone})[0]
	return func(yield func(string) bool) {
		v.mu.RLock()
		services := slices.SortedFunc(maps.Keys(v.services), lb.ServiceName.Compare)
		v.mu.RUnlock()
		for _, service := range services {
			for _, name := range v.namesOf(service, zone) {
				if !yield(name) {
					return
				}
			}
		}
	}
}

// namesOf is the name of a Service, and then those of its endpoints; none where it is gone.
func (v *View) namesOf(service lb.ServiceName, zone string) []string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	e := v.services[service]
	if e == nil || e.service.Unserved {
		return nil
	}
	own := []string{serviceName(service, "", zone)}
	for _, c := range e.backends {
		own = append(own, serviceName(service, c.host, zone))
	}
	slices.Sort(own[1:])
	return slices.Compact(own)
}

// SetNamespace says that a Namespace exists as an object of its own, or that it does not any more.
func (v *View) SetNamespace(name string, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.modified()
	n := v.namespaces[name]
	if n == nil {
		n = &namespace{}
		v.namespaces[name] = n
	}
	n.declared = exists
	v.forget(name, n)
}

// SetNode tells of the labels of a Node. This node's own say what is near, unless the options named a zone.
func (v *View) SetNode(name, zone, region string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	own := &v.options.Node
	if name == "" || name != own.Name {
		return
	}
	before := *own
	if own.Region = region; !v.zoned {
		own.Zone = zone
	}
	if own.Zone == before.Zone && own.Region == before.Region {
		return
	}
	for name, e := range v.services {
		v.services[name] = newEntry(e.service, v.options) // the same addresses: the indexes stay
	}
}

// SetPod puts a Pod that is not terminating in force in the place of what it was.
func (v *View) SetPod(p lb.NamedPod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.removePod(p.Name)
	v.count(p.Name.Namespace, 1)
	v.podsByName[p.Name] = p.Addresses
	for _, a := range p.Addresses {
		if v.pods[a] == nil {
			v.pods[a] = map[lb.PodName]bool{}
		}
		v.pods[a][p.Name] = true
	}
}

// RemovePod takes a Pod out that is gone or terminating. An unknown one is no error.
func (v *View) RemovePod(name lb.PodName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.removePod(name)
}

func (v *View) removePod(name lb.PodName) {
	v.modified()
	old, known := v.podsByName[name]
	if !known {
		return
	}
	v.count(name.Namespace, -1)
	delete(v.podsByName, name)
	for _, a := range old {
		if delete(v.pods[a], name); len(v.pods[a]) == 0 {
			delete(v.pods, a)
		}
	}
}

// modified moves the serial of the zone on: seconds, as CoreDNS counts, but never backwards.
func (v *View) modified() { v.serial = max(v.serial, uint32(time.Now().Unix())) }

// count counts the objects of a Namespace.
func (v *View) count(name string, by int) {
	n := v.namespaces[name]
	if n == nil {
		n = &namespace{}
		v.namespaces[name] = n
	}
	n.objects += by
	v.forget(name, n)
}

func (v *View) forget(name string, n *namespace) {
	if !n.declared && n.objects == 0 {
		delete(v.namespaces, name)
	}
}

func (v *View) index(in map[netip.Addr][]lb.ServiceName, addresses []netip.Addr, name lb.ServiceName) {
	for _, a := range addresses {
		at, found := slices.BinarySearchFunc(in[a], name, lb.ServiceName.Compare)
		if !found {
			in[a] = slices.Insert(in[a], at, name)
			v.below(a, 1)
		}
	}
}

func (v *View) unindex(in map[netip.Addr][]lb.ServiceName, addresses []netip.Addr, name lb.ServiceName) {
	for _, a := range addresses {
		at, found := slices.BinarySearchFunc(in[a], name, lb.ServiceName.Compare)
		if found {
			in[a] = slices.Delete(in[a], at, at+1)
			v.below(a, -1)
		}
		if len(in[a]) == 0 {
			delete(in, a)
		}
	}
}

// below counts the reverse names below each name above them.
func (v *View) below(a netip.Addr, by int) {
	if v.parents == nil {
		return
	}
	for _, prefix := range parentsOf(a) {
		if v.parents[prefix] += by; v.parents[prefix] == 0 {
			delete(v.parents, prefix)
		}
	}
}

// dashed is the name of an endpoint without hostname: its address with dashes, as CoreDNS writes it.
func dashed(address string) string {
	name := strings.NewReplacer(".", "-", ":", "-").Replace(address)
	if strings.HasSuffix(name, "-") {
		name += "0"
	}
	return name
}
