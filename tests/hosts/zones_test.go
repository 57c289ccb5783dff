// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// metricsPort is where an agent answers, on its node's loopback address alone.
const metricsPort = 10249

// zoned is a cluster of two zones, each with a client and a server. In zone a they are on two nodes.
type zoned struct {
	*cluster
	clients []*lab.Pod
	servers []*lab.Pod
}

func newZoned(t *testing.T) *zoned {
	c := onLinks(t)
	z := &zoned{
		cluster: c,
		clients: []*lab.Pod{c.pod(0, "client-a"), c.pod(2, "client-b")},
		servers: []*lab.Pod{c.server(1, "web-a"), c.server(2, "web-b")},
	}
	for i := range c.agents {
		c.awaitServing(i)
	}
	return z
}

// carried are bytes between clients and backends.
type carried struct{ inZone, crossing float64 }

// scrape is what an agent tells once it has added up what went on until now.
func (z *zoned) scrape(node *lab.Node) (text string) {
	z.t.Helper()
	now := float64(time.Now().UnixNano()) / 1e9
	z.await("the agent adds up its counters", func() bool {
		metrics, err := get(node, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), metricsPort), "/metrics")
		if err != nil {
			return false // it does not listen yet
		}
		text = metrics.text
		_, after, _ := strings.Cut(text, "\nnearlb_last_look_timestamp_seconds ")
		line, _, _ := strings.Cut(after, "\n")
		at, err := strconv.ParseFloat(line, 64)
		return err == nil && at > now
	})
	return text
}

// sum is what the agents of the clients' nodes have counted, as Prometheus would read it.
func (z *zoned) sum() (total carried) {
	z.t.Helper()
	for _, client := range z.clients {
		for line := range strings.Lines(z.scrape(client.Node)) {
			var of, by, direction string
			var bytes float64
			_, err := fmt.Sscanf(line, "nearlb_zone_bytes_total{backend_zone=%q,client_zone=%q,direction=%q} %g", &of, &by, &direction, &bytes)
			switch {
			case err != nil:
			case of == by:
				total.inZone += bytes
			default:
				total.crossing += bytes
			}
		}
	}
	return total
}

const (
	asked = 10       // connections of each client over each way
	sent  = 32 << 10 // bytes that a server sends over each one of TCP
)

// load has every client ask the Service, from the moment that it is published, and tells what the agents counted of that.
func (z *zoned) load(s *service) carried {
	z.t.Helper()
	before := z.sum()
	s.publish(ready(z.servers...)...)
	for _, client := range z.clients {
		for _, w := range ways() {
			s.await(fmt.Sprintf("%s is answered over %s", client, w), func() bool { _, err := s.try(client, w); return err == nil })
			for i := range asked {
				s.carry(client, w, uint64(i))
			}
		}
	}
	after := z.sum()
	return carried{after.inZone - before.inZone, after.crossing - before.crossing}
}

func (s *service) carry(client host, w way, seed uint64) {
	s.t.Helper()
	conn := s.dial(client, w)
	defer conn.Close()
	err := error(nil)
	if w.network == "tcp" {
		err = conn.Get(seed, sent)
	} else {
		_, err = conn.Who()
	}
	if err != nil {
		s.t.Errorf("%s over %s: %v", client, w, err)
	}
}

// B18: with a backend in each zone, no byte crosses zones where that is preferred not to be, by whatever means that is said.
func TestTrafficStaysInItsZoneIfThatIsPreferred(t *testing.T) {
	z := newZoned(t)
	hinted, annotated, indifferent := z.service(1), z.service(2), z.service(3)
	hinted.hints = true
	annotated.Annotations = map[string]string{"nearlb.io/traffic-distribution": "PreferSameZone"}
	for _, of := range []struct {
		preference string
		service    *service
		crossing   bool
	}{{"hints", hinted, false}, {"annotation", annotated, false}, {"none", indifferent, true}} {
		got := z.load(of.service)
		least := float64(sent * asked * len(z.clients) * 2) // two families
		if got.inZone+got.crossing < least || of.crossing != (got.crossing > 0) {
			t.Errorf("preference %s: %+v bytes; want %.0f or more, some of them crossing zones: %v", of.preference, got, least, of.crossing)
		}
	}
}
