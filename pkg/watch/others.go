// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nearlb/nearlb/pkg/lb"
)

// extent is how much of the Nodes other than the own one is read. Each Node writes its status every five minutes, some ten kilobytes,
// which every agent would be sent: with 5,000 Nodes 17 times a second.
type extent int

const (
	nothingOfOthers  extent = iota
	metadataOfOthers        // labels: for topology keys, and for zones that slices do not say
	allOfOthers             // addresses and processors, too: for external IPs, for overflows, and for endpoints without nodeName whose Service asks for near ones
)

// keptFor is how long the other Nodes are read on when nothing asks for them any more: the next such Service may come soon.
const keptFor = 10 * time.Minute

// others knows what is read of the other Nodes.
type others struct {
	again  chan struct{} // gets something when other Services or slices may ask for more
	extent extent        // what is being read; guarded by cluster.mu
}

func newOthers() *others { return &others{again: make(chan struct{}, 1)} }

func (o *others) look() {
	select {
	case o.again <- struct{}{}:
	default:
	}
}

// picky tells whether the decision about a Service may depend on Nodes other than the own one, whose traffic policies, hints and
// affinity do not.
func (s *service) picky(cfg NodeConfig) bool {
	more := s.more()
	return more.Overflow.Given || len(more.TopologyKeys) > 0 || more.Distribution != "" || len(more.ExternalIPs) > 0 && cfg.ExternalIPs != lb.ExternalIPsDenied
}

// extent is what the Services of now ask for.
func (s *store) extent() extent {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.cfg.AllNodes {
		return allOfOthers
	}
	for e := allOfOthers; e > nothingOfOthers; e-- {
		if s.asking[e] > 0 {
			return e
		}
	}
	return nothingOfOthers
}

// notePicky notes what a Service asks for, when it or its slices have changed.
func (s *store) notePicky(name lb.ServiceName) {
	if before, was := s.picky[name]; was {
		s.asking[before]--
		delete(s.picky, name)
	}
	if svc := s.services[name]; svc != nil && svc.picky(s.cfg) {
		e := s.extentOf(name)
		s.picky[name] = e
		s.asking[e]++
	}
}

func (s *store) extentOf(name lb.ServiceName) (out extent) {
	more := s.services[name].more()
	if more.Overflow.Given || len(more.ExternalIPs) > 0 && s.cfg.ExternalIPs != lb.ExternalIPsDenied {
		return allOfOthers
	}
	if len(more.TopologyKeys) > 0 {
		out = metadataOfOthers
	}
	if out == nothingOfOthers && more.Distribution == "" {
		return out
	}
	for _, slice := range s.owned[name] {
		for _, e := range slice.endpoints {
			switch at := e.At.Value(); {
			case at.Node == "" && !s.cfg.KeepNodeless && !slices.Contains(s.self.Addresses, e.Addr()):
				return allOfOthers
			case at.Node != "" && at.Zone == "":
				out = metadataOfOthers
			}
		}
	}
	return out
}

// waitsForOthers tells, when all else was listed, whether other Nodes, or regions, are to be read before Synced.
func (c *cluster) waitsForOthers() bool {
	if _, decided := c.waiting[kindOthers]; decided || c.extent() == nothingOfOthers && len(c.regionless()) == 0 {
		return false
	}
	c.waiting[kindOthers] = true
	c.others.look()
	return true
}

// followOthers reads of the other Nodes what is asked for, more at once and less after a while, until ctx ends.
func (c *cluster) followOthers(ctx context.Context) {
	var less <-chan time.Time
	stop, reading := func() {}, nothingOfOthers
	defer func() { stop() }()
	for {
		wanted := c.extent()
		switch {
		case wanted > reading:
			stop()
			stop, reading, less = c.readOthers(ctx, wanted), wanted, nil
		case wanted == reading:
			less = nil
		case less == nil:
			less = time.After(keptFor)
		}
		c.askRegions(ctx)
		if wanted == nothingOfOthers {
			c.listedNone()
		}
		select {
		case <-ctx.Done():
			return
		case <-c.others.again:
		case <-less:
			less = nil
			if wanted = c.extent(); wanted < reading { // or else what asks for more has just come
				stop()
				stop, reading = c.readOthers(ctx, wanted), wanted
			}
		}
	}
}

// readOthers begins to read; who calls the result waits for its end. With nothing to read it forgets what was.
func (c *cluster) readOthers(ctx context.Context, e extent) (stop func()) {
	c.mu.Lock()
	c.others.extent = e
	if e < allOfOthers {
		c.knowOthers(false)
	}
	c.mu.Unlock()
	if e == nothingOfOthers {
		c.update(nil, c.keys(kindOthers))
		return func() {}
	}
	subject := "all of them"
	options := metav1.ListOptions{FieldSelector: fields.OneTermNotEqualSelector(metav1.ObjectNameField, c.cfg.Name).String()}
	r := newResource(kindOthers, &corev1.Node{}, c.client.Nodes(), options)
	if light := c.client.Metadata(corev1.SchemeGroupVersion.WithResource("nodes")); light != nil && e == metadataOfOthers {
		subject = "their metadata"
		r = newResource(kindOthers, &metav1.PartialObjectMetadata{}, light, options)
	}
	c.log.Debug("reading other Nodes", "subject", subject)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.reflect(ctx, r)
	}()
	return func() {
		cancel()
		<-done
		c.outage.worked(kindOthers) // whatever it was, nobody waits for it any more
	}
}

// knowOthers tells of the Services for which it matters whether all Nodes are known.
func (c *cluster) knowOthers(all bool) {
	var changed changes
	if c.knowAllNodes(all, &changed); c.synced {
		changed.tell(c.ev)
	}
}

// countZones counts a slice's endpoints to their zones, or with -1 away from them. With the last one the zone's region is forgotten.
func (s *store) countZones(of *slice, by int) {
	for _, e := range of.endpoints {
		zone := e.At.Value().Zone
		if zone == "" {
			continue
		}
		if s.zones[zone] += by; s.zones[zone] == 0 {
			delete(s.zones, zone)
			delete(s.regions, zone)
		}
	}
}

// regionless are the zones of endpoints whose region is not known, sorted. A zone is in one region, and a Node in each of its zones says
// in which; where the own Node has none, none is asked for.
func (s *store) regionless() (zones []string) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.self.Region == "" {
		return nil
	}
	for zone := range s.zones {
		if _, asked := s.regions[zone]; !asked && zone != s.self.Zone {
			zones = append(zones, zone)
		}
	}
	slices.Sort(zones)
	return zones
}

// askRegions asks for one Node of each zone whose region is not known. What fails is asked again when there is other news.
func (c *cluster) askRegions(ctx context.Context) {
	for _, zone := range c.regionless() {
		inTime, cancel := context.WithTimeout(ctx, watchTime)
		list, err := c.client.Nodes().List(inTime, metav1.ListOptions{LabelSelector: labels.Set{corev1.LabelTopologyZone: zone}.String(), Limit: 1})
		cancel()
		if err != nil {
			c.log.Debug("region of a zone is not known", "zone", zone, "error", err)
			return
		}
		region := ""
		for i := range list.Items {
			if converted, refusal := convertNode(&list.Items[i]); refusal == nil && converted.node.zone == zone {
				region = converted.node.region
			}
		}
		c.setRegion(zone, region)
	}
}

// setRegion tells of the Services with endpoints in the zone.
func (c *cluster) setRegion(zone, region string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var changed changes
	c.store.mu.Lock()
	if c.zones[zone] > 0 {
		c.regions[zone] = region
	}
	for _, slice := range c.slices {
		if region != "" && slices.ContainsFunc(slice.endpoints, func(e lb.SliceEndpoint) bool { return e.At.Value().Zone == zone }) {
			c.touch(slice.owner, &changed)
		}
	}
	c.store.mu.Unlock()
	if c.synced {
		changed.tell(c.ev)
	}
}

// listedNone goes on with the start where regions alone were waited for.
func (c *cluster) listedNone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting[kindOthers] {
		c.arrived(kindOthers)
	}
}
