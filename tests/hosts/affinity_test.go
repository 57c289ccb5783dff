// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/pkg/maps"
)

const (
	threeHours = 10800 // the default of the API, in seconds
	answers    = 15    // that must be alike
)

// sticky is a service with session affinity, clients on n1 and servers on both nodes. All clients are bound to the first server:
// it was alone when they came. Chance among five servers would not have both clients there on all four ways.
type sticky struct {
	*service
	clients []*lab.Pod
	servers []*lab.Pod
	port    uint16 // of a client's last question: a port that comes again may be a UDP connection that goes on
}

// firstPort is below those that the kernel chooses.
const firstPort = 20000

func (s *sticky) ask(client *lab.Pod, w way) (lab.Answer, error) {
	s.port++
	return client.Ask(context.Background(), w.network, s.address(w.six), lab.DialOptions{LocalPort: firstPort + s.port})
}

func newSticky(t *testing.T) *sticky {
	c := onLinks(t)
	s := &sticky{service: c.service(1)}
	s.Affinity = threeHours
	for i := range 2 {
		s.clients = append(s.clients, c.pod(0, fmt.Sprintf("client-%d", i+1)))
	}
	for i := range 5 {
		s.servers = append(s.servers, c.server(i%2, fmt.Sprintf("web-%d", i+1)))
	}
	s.publish(ready(s.servers[0])...)
	for _, client := range s.clients {
		s.awaitServer(client, s.servers[0].Name)
	}
	s.change(s.servers)
	return s
}

// change publishes the service with these servers and waits until n1's tables say so, of the frontends: the servers alone
// are there before.
func (s *sticky) change(servers []*lab.Pod) {
	s.t.Helper()
	s.publish(ready(servers...)...)
	s.await(fmt.Sprintf("%d servers and %d seconds are published", len(servers), s.Affinity), func() bool {
		published := 0
		s.read(0, func(r *maps.Reader) error {
			for row, err := range r.Frontends() {
				if err != nil {
					return err
				}
				if row.Service == "default/"+s.Name && len(row.Internal.Tiers) == 1 && len(row.Internal.Tiers[0].Backends) == len(servers) && int(row.AffinitySeconds) == s.Affinity {
					published++
				}
			}
			return nil
		})
		return published == len(ways())
	})
}

// bound is who answers a client, always the same.
func (s *sticky) bound(client *lab.Pod, w way) string {
	s.t.Helper()
	first := ""
	for i := range answers {
		answer, err := s.ask(client, w)
		if err != nil {
			s.t.Fatalf("%s asks over %s: %v", client.Name, w, err)
		}
		if i == 0 {
			first = answer.Server
		}
		if answer.Server != first {
			s.t.Fatalf("%s asks over %s: answer %d is of %s, the first was of %s", client.Name, w, i+1, answer.Server, first)
		}
	}
	return first
}

// places are the servers that clients are bound to, by client and way.
func (s *sticky) places() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, client := range s.clients {
		for _, w := range ways() {
			out[client.Name+" "+w.String()] = s.bound(client, w)
		}
	}
	return out
}

func (s *sticky) allAtFirst(when string) {
	s.t.Helper()
	for who, server := range s.places() {
		if server != s.servers[0].Name {
			s.t.Errorf("%s: %s is at %s", when, who, server)
		}
	}
}

// someElsewhere wants somebody to be elsewhere. Where chance has sent everybody back, all that n1 remembers becomes that much older once more.
func (s *sticky) someElsewhere(when string, older time.Duration) {
	s.t.Helper()
	s.await(when+", somebody is elsewhere", func() bool {
		for _, server := range s.places() {
			if server != s.servers[0].Name {
				return true
			}
		}
		s.age(older)
		return false
	})
}

// age has all that n1 remembers be that much older.
func (s *sticky) age(d time.Duration) {
	s.t.Helper()
	err := s.Mounted(func() error {
		tables, err := bpf.OpenMaps(s.nodes[0].PinPath(), false)
		if err != nil {
			return err
		}
		defer tables.Close()
		var key bpf.NearlbAffinityKey
		var value bpf.NearlbAffinityValue
		aged := map[bpf.NearlbAffinityKey]bpf.NearlbAffinityValue{}
		entries := tables.Affinity.Iterate()
		for entries.Next(&key, &value) {
			value.Touched -= uint64(d)
			aged[key] = value
		}
		for key, value := range aged {
			if err := tables.Affinity.Put(key, value); err != nil {
				return err
			}
		}
		if len(aged) < len(s.clients)*len(ways()) {
			return fmt.Errorf("%d entries remember %d clients", len(aged), len(s.clients))
		}
		return entries.Err()
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Session affinity, over the end of its agent too: what the kernel remembers counts, and its ids mean the same afterwards.
func TestAffinityOutlivesItsAgent(t *testing.T) {
	s := newSticky(t)
	s.allAtFirst("with one server among five")
	for name, end := range map[string]func(*lab.Process) error{"killed": (*lab.Process).Kill, "stopped": (*lab.Process).Stop} {
		if err := end(s.agents[0]); err != nil {
			t.Fatal(err)
		}
		s.allAtFirst("with its agent " + name)
		s.agents[0] = s.startAgent(0)
		s.awaitServing(0)
		s.allAtFirst("with another agent after one was " + name)
	}
}

func TestAffinityLeavesAServerThatIsGone(t *testing.T) {
	s := newSticky(t)
	s.change(s.servers[1:])
	left := s.places()
	for who, server := range left {
		if server == s.servers[0].Name {
			t.Errorf("%s is still at %s", who, server)
		}
	}
	s.change(s.servers)
	for who, server := range s.places() {
		if server != left[who] {
			t.Errorf("%s went from %s to %s when another server came", who, left[who], server)
		}
	}
}

// A server that goes and comes back while no agent runs is the same one to its clients; one that stays away is left.
func TestAffinityFollowsWhatChangedWhileNoAgentRan(t *testing.T) {
	s := newSticky(t)
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.publish(ready(s.servers[1:]...)...)
	s.publish(ready(s.servers...)...)
	s.agents[0] = s.startAgent(0)
	s.awaitServing(0)
	s.allAtFirst("with all servers there")
	if err := s.agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	s.publish(ready(s.servers[1:]...)...)
	s.agents[0] = s.startAgent(0)
	s.change(s.servers[1:])
	for who, server := range s.places() {
		if server == s.servers[0].Name {
			t.Errorf("%s is still at %s", who, server)
		}
	}
}

func TestAffinityIsOfOneServicePort(t *testing.T) {
	c := onLinks(t)
	client, servers := c.pod(0, "client"), []*lab.Pod{}
	for i := range 6 {
		servers = append(servers, c.server(i%2, fmt.Sprintf("web-%d", i+1)))
	}
	seen := map[string]bool{}
	for number := 1; number <= 8; number++ { // chance binds both ports to one server; not eight times
		s := &sticky{service: c.service(number), clients: []*lab.Pod{client}, servers: servers}
		s.Affinity = threeHours
		s.publish(ready(servers[0])...)
		s.await("TCP is served", func() bool {
			answer, err := s.try(client, way{"tcp", false})
			return err == nil && answer.Server == servers[0].Name
		})
		s.change(servers)
		if got := s.bound(client, way{"tcp", false}); got != servers[0].Name {
			t.Errorf("over TCP the client is at %s, was at %s", got, servers[0].Name)
		}
		seen[s.bound(client, way{"udp", false})] = true
	}
	if len(seen) == 1 && seen[servers[0].Name] {
		t.Error("over UDP the client is where it is over TCP, for each of eight services")
	}
}

// The time begins anew with each connection, and a change of it counts for those who came before.
func TestAffinityEndsWhenNobodyCameForItsTime(t *testing.T) {
	s := newSticky(t)
	s.age((threeHours - 1800) * time.Second)
	s.allAtFirst("half an hour before the end")
	s.age((threeHours - 1800) * time.Second)
	s.allAtFirst("half an hour before the end of the time that began anew")
	s.age(600 * time.Second)
	s.Affinity = 3600
	s.change(s.servers)
	s.allAtFirst("ten minutes later, with an hour's time")
	s.age(600 * time.Second)
	s.Affinity = 300
	s.change(s.servers)
	s.someElsewhere("ten minutes later, with five minutes' time", 600*time.Second)
}

func TestAffinityIsSwitchedOnAndOffWhileItServes(t *testing.T) {
	s := newSticky(t)
	s.Affinity = 0
	s.change(s.servers)
	for _, w := range ways() {
		seen := map[string]bool{}
		for range 2 * answers {
			answer, err := s.ask(s.clients[0], w)
			if err != nil {
				t.Fatal(err)
			}
			seen[answer.Server] = true
		}
		if len(seen) < 3 {
			t.Errorf("over %s, without affinity, %d servers answer", w, len(seen))
		}
	}
	s.Affinity = threeHours
	s.change(s.servers)
	s.places() // each the same server every time
}
