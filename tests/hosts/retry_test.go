// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/lab"
)

// deaf has a pod lose the SYNs that come to it, as one whose node has lost its power. It counts those of the tests' clients, who choose their
// ports: those that the kernel chooses are of the agent's own questions, which come when they like.
func deaf(t *testing.T, p *lab.Pod) {
	t.Helper()
	if err := p.Netfilter(fmt.Sprintf(`
table inet deaf {
	counter syns { }
	chain input {
		type filter hook input priority filter
		tcp dport %d tcp flags & (syn | ack) == syn jump lost
	}
	chain lost {
		tcp sport 32768-60999 drop
		counter name syns drop
	}
}`, targetPort)); err != nil {
		t.Fatal(err)
	}
}

// mute has a pod's node lose the pod's answers to SYNs, until it speaks. In the pod itself the loss would be an error, which ends the
// connection at once.
func mute(t *testing.T, p *lab.Pod) (speak func()) {
	t.Helper()
	if err := p.Node.Netfilter(fmt.Sprintf(`
table inet mute {
	chain forward {
		type filter hook forward priority filter
		iifname %q tcp flags & (syn | ack) == syn | ack drop
	}
}`, p.Device)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := p.Node.Netfilter("delete table inet mute"); err != nil {
			t.Fatal(err)
		}
	}
}

// retransmits counts what the socket had to send again.
func retransmits(t *testing.T, c *lab.Conn) uint32 {
	t.Helper()
	n, err := c.Retransmits()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// One of ten servers loses SYNs. Every client of the first node connects all the same: who came to that server first, with a SYN that it
// sends again, which that server does not see.
func TestAServerThatLosesSYNsKeepsNobodyFromConnecting(t *testing.T) {
	s := newStage(t, options{alone: true, agent: []string{"--ejection=off"}}) // else new connections leave that server out
	servers := []*lab.Pod{s.near, s.far}
	for n := range 8 {
		servers = append(servers, s.server(n%2, fmt.Sprint("web-", n)))
	}
	for _, dead := range []*lab.Pod{s.near, s.far} {
		of := s.next()
		s.serve(s.next(), ready(s.far)...)
		of.publish(ready(servers...)...)
		of.awaitFrontends()
		deaf(t, dead)
		for _, client := range []host{s.pod, s.outside} {
			for _, six := range []bool{false, true} {
				s.connectsAround(of, client, dead, six)
			}
		}
		if err := dead.Netfilter("delete table inet deaf"); err != nil {
			t.Fatal(err)
		}
	}
}

// connectsAround opens a hundred connections of a client, and as many again where chance sent none of them to the deaf server.
func (s *stage) connectsAround(of *service, client host, dead *lab.Pod, six bool) {
	s.t.Helper()
	before, lost := s.verdicts(0)["translate_retry"], synsLost(s.t, dead)
	var again atomic.Uint64
	s.await(client.String()+" comes to "+dead.String(), func() bool {
		if err := s.crowdAround(of, client, dead, six, &again); err != nil {
			s.t.Errorf("%s, six %v, %s is deaf: %v", client, six, dead, err)
		}
		return synsLost(s.t, dead) > lost || s.t.Failed()
	})
	retries, syns := s.verdicts(0)["translate_retry"]-before, synsLost(s.t, dead)-lost
	s.t.Logf("%s, six %v, %s is deaf: it lost %d SYNs; %d clients sent again, %d SYNs went elsewhere", client, six, dead, syns, again.Load(), retries)
	if syns == 0 || retries < syns || syns > again.Load() {
		s.t.Errorf("%s, six %v: %s lost %d SYNs of %d clients that sent again, %d went elsewhere; want one of each client", client, six, dead, syns, again.Load(), retries)
	}
}

// crowdAround opens a hundred connections at once, and counts those that sent their SYN again. The deaf server answers none.
func (s *stage) crowdAround(of *service, client host, dead *lab.Pod, six bool, again *atomic.Uint64) error {
	var crowd errgroup.Group
	for range 100 {
		crowd.Go(func() error {
			conn, err := client.Dial(context.Background(), "tcp", s.by(of, loadBalancer).address(six), lab.DialOptions{LocalPort: s.port()})
			if err != nil {
				return err
			}
			defer conn.Close()
			if retransmits(s.t, conn) > 0 {
				again.Add(1)
			}
			answer, err := conn.Who()
			if err == nil && answer.Server == dead.Name {
				err = fmt.Errorf("%s answers", dead)
			}
			return err
		})
	}
	return crowd.Wait()
}

// synsLost is what a deaf pod did not hear.
func synsLost(t *testing.T, p *lab.Pod) uint64 {
	t.Helper()
	said, err := p.NetfilterState("counter", "inet", "deaf", "syns")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(said)
	for i, f := range fields[:len(fields)-1] {
		if n, err := strconv.ParseUint(fields[i+1], 10, 64); f == "packets" && err == nil {
			return n
		}
	}
	t.Fatalf("no counter in %q", said)
	return 0
}

// A server whose answer is lost has half a connection. When its answer comes at last, the client has gone elsewhere, and it is reset: by the client's host;
// by this node's, under SNAT; and by nearlb where a client off the node has no way to the server, as pods' addresses are known to nodes alone, and
// where the client is the node itself, whose socket would take the answer for its own.
func TestALateAnswerToASYNIsReset(t *testing.T) {
	s := newStage(t, options{alone: true, lab: lab.Options{Network: lab.Tunneled}})
	for _, late := range []*lab.Pod{s.near, s.far} {
		for _, client := range []host{s.pod, s.outside, s.here} {
			for _, six := range []bool{false, true} {
				if client != host(s.here) || late == s.far { // a server of the node answers the node without being forwarded: it is not mute
					s.checkLate(client, late, six)
				}
			}
		}
	}
	s.awaitVerdict(0, "reject_late_answer")
}

func (s *stage) checkLate(client host, late *lab.Pod, six bool) {
	s.t.Helper()
	other := map[bool]*lab.Pod{true: s.far, false: s.near}[late == s.near]
	of := s.next()
	s.serve(of, ready(other)...)
	speak := mute(s.t, late)
	of.publish(ready(late, other)...)
	before, resets := s.verdicts(0)["translate_retry"], embryosReset(s.t, late)
	for s.verdicts(0)["translate_retry"] == before {
		if answer, err := s.dial(client, of, loadBalancer, way{"tcp", six}).Who(); err != nil || answer.Server != other.Name {
			s.t.Fatalf("%s: %+v, %v", client, answer, err)
		}
	}
	speak()
	s.await(fmt.Sprintf("%s hears of %s, six %v, that it is late", late, client, six), func() bool { return embryosReset(s.t, late) > resets })
}

// embryosReset counts connections of a pod that were reset before they were open.
func embryosReset(t *testing.T, p *lab.Pod) (n uint64) {
	t.Helper()
	if err := p.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netstat")
		lines := strings.Split(string(text), "\n")
		names, values := strings.Fields(lines[0]), strings.Fields(lines[1])
		for i, name := range names {
			if name == "EmbryonicRsts" {
				n, err = strconv.ParseUint(values[i], 10, 64)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return n
}
