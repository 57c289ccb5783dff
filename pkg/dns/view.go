// SPDX-License-Identifier: Apache-2.0

// Package dns answers the names of Kubernetes' Services and Pods: the specification of kubernetes/dns 1.1.0, and where that is silent
// what CoreDNS answers (docs/dns.md lists the differences). Answers are made from a View by a function that knows no socket.
package dns

import (
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// View is what names are answered from: Services with their endpoints, Namespaces and Pods. It shares the Services with who told it of
// them, and adds a map by name and an index of addresses; records are made when they are asked for. All methods may be called from any
// goroutine.
type View struct {
	options ViewOptions

	mu         counted
	zoned      bool // the options named this node's zone
	synced     bool
	serial     uint32
	services   map[lb.ServiceName]*entry
	entries    []*entry // by number; nil: the number is free
	free       []uint32 // numbers
	namespaces map[string]*namespace
	clusterIPs index
	endpoints  index                       // of ready ones
	pods       map[netip.Addr][]lb.PodName // mostly one
	podsByName map[lb.PodName][]netip.Addr
	doubtful   map[lb.ServiceName]bool // exist, and are not in force
	mirror     *mirror                 // nil: none
}

// ViewOptions are what a View needs to know of its node and of how names are made.
type ViewOptions struct {
	Node     lb.Node // the clients' own: its name, zone and region say what is near
	PodNames bool    // an endpoint without hostname is named by its Pod (CoreDNS endpoint_pod_names)
}

// namespace exists if an object of it does, or if it was said to.
type namespace struct {
	declared bool
	objects  int
}

// NewView is an empty view that was not told everything yet.
func NewView(o ViewOptions) *View {
	return &View{
		options: o, zoned: o.Node.Zone != "", serial: uint32(time.Now().Unix()),
		services: map[lb.ServiceName]*entry{}, namespaces: map[string]*namespace{},
		pods: map[netip.Addr][]lb.PodName{}, podsByName: map[lb.PodName][]netip.Addr{},
	}
}

// Synced says that the view was told of everything once. Before that a missing name is no proof that there is none.
func (v *View) Synced() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.synced = true
	v.mirror.configure()
}

// Set puts a Service in force in the place of what it was, and keeps it.
func (v *View) Set(s *lb.NamedService) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(s.Name, s)
}

// Narrow takes those ClusterIPs and endpoints of a Service out that its next state has not: before the tables of packets lose them. Where
// nothing stays, the Service is in doubt. Set follows. What no tables have stays until then.
func (v *View) Narrow(next *lb.NamedService) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.services[next.Name]
	if old == nil || old.service == next || !old.service.OfPackets() && old.service.Headless == next.Headless && !next.OfPackets() {
		return
	}
	if both := old.service.Within(next); both != nil {
		v.replace(next.Name, both)
		return
	}
	v.suspend(old)
}

// suspend has a Service that is in force be in doubt. It exists all the time.
func (v *View) suspend(old *entry) {
	v.modified()
	v.drop(old)
	v.setDoubtful(old.service.Name, old)
}

// setDoubtful notes that a Service is in doubt, which was in force as old or is new.
func (v *View) setDoubtful(name lb.ServiceName, old *entry) {
	if v.doubtful == nil {
		v.doubtful = map[lb.ServiceName]bool{}
	}
	v.doubtful[name] = true
	v.mirror.service(name, old, nil, false)
}

// drop takes an entry out of everything but what counts the objects of Namespaces.
func (v *View) drop(old *entry) {
	v.clusterIPs.replace(old.number, old.clusterIPs(), nil)
	v.endpoints.replace(old.number, old.addresses(), nil)
	delete(v.services, old.service.Name)
	v.entries[old.number], v.free = nil, append(v.free, old.number)
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
	v.count(name.Namespace, 1) // first: the mirror writes names below those of Namespaces
	v.setDoubtful(name, nil)
}

// Remove takes a Service out. An unknown one is no error.
func (v *View) Remove(name lb.ServiceName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replace(name, nil)
}

// replace takes nil for a Service that is gone. It takes as long as sorting the addresses of both states.
func (v *View) replace(name lb.ServiceName, service *lb.NamedService) {
	v.modified()
	if v.doubtful[name] {
		delete(v.doubtful, name)
		defer v.count(name.Namespace, -1) // last: the Namespace exists all the time
	}
	old, next := v.services[name], &entry{service: &lb.NamedService{}}
	switch {
	case old == nil && service == nil:
		v.mirror.service(name, nil, nil, false)
		return
	case old == nil:
		old = next
		next = &entry{service: service, number: v.newNumber(), podNames: v.options.PodNames}
		v.count(name.Namespace, 1)
	case service != nil:
		next = &entry{service: service, number: old.number, podNames: v.options.PodNames}
	default:
		v.count(name.Namespace, -1)
		v.drop(old)
		v.mirror.service(name, old, nil, false)
		return
	}
	v.clusterIPs.replace(next.number, old.clusterIPs(), next.clusterIPs())
	v.endpoints.replace(next.number, old.addresses(), next.addresses())
	v.services[service.Name], v.entries[next.number] = next, next
	v.mirror.service(name, old, next, false)
}

// newNumber is one that no entry has.
func (v *View) newNumber() uint32 {
	if last := len(v.free) - 1; last >= 0 {
		number := v.free[last]
		v.free = v.free[:last]
		return number
	}
	v.entries = append(v.entries, nil)
	return uint32(len(v.entries) - 1)
}

// owners are the entries that have an address, in the order of their names.
func (v *View) owners(in *index, a netip.Addr) (all []*entry) {
	var room [4]uint32
	numbers := in.owners(room[:0], a)
	if len(numbers) == 0 {
		return nil
	}
	all = make([]*entry, len(numbers))
	for i, number := range numbers {
		all[i] = v.entries[number]
	}
	slices.SortFunc(all, func(a, b *entry) int { return a.service.Name.Compare(b.service.Name) })
	return all
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
	if own.Region != before.Region || own.Zone != before.Zone {
		v.mirror.places()
	}
}

// SetPod puts a Pod that is not terminating in force in the place of what it was.
func (v *View) SetPod(p lb.NamedPod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.count(p.Name.Namespace, 1) // first: the Namespace exists all the time
	v.removePod(p.Name)
	v.podsByName[p.Name] = p.Addresses
	for _, a := range p.Addresses {
		if !slices.Contains(v.pods[a], p.Name) {
			v.pods[a] = append(v.pods[a], p.Name)
		}
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
		left := slices.DeleteFunc(v.pods[a], func(other lb.PodName) bool { return other == name })
		if v.pods[a] = left; len(left) == 0 {
			delete(v.pods, a)
		}
	}
}

// modified moves the serial of the zone on: seconds, as CoreDNS counts, but never backwards.
func (v *View) modified() {
	v.serial = max(v.serial, uint32(time.Now().Unix()))
	v.mirror.configure()
}

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
	v.mirror.namespace(name)
}
