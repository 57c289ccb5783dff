// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"context"
	"fmt"
	"testing"

	"github.com/nearlb/nearlb/pkg/lab"
)

const some = 300 // answers that count as traffic flowing

// methods are the flags of each way of attaching.
func methods() map[string][]string {
	return map[string][]string{"links": nil, "clsact filters": {"--attach", "clsact"}}
}

// Every connection goes on over an upgrade and back, though new ones would be sent elsewhere, and the ones that are made
// meanwhile do, too. No connection is known by luck: the server that holds half of them is no endpoint any more.
// Here programs are filters; agents of the DaemonSet, of which another test wants the same, attach them by links.
func TestConnectionsOutliveAnUpgradeAndADowngrade(t *testing.T) {
	newRig(t, methods()["clsact filters"]...).upgradeAndBack()
}

// upgradeAndBack gives the connections that were there before.
func (r *rig) upgradeAndBack() []*held {
	r.t.Helper()
	r.start(r.there, ours)
	r.become(ours)
	s := service(1)
	r.publish(s, r.near, r.far)
	r.awaitServers(s, "near", "far")
	kept := r.holdAll(s)
	sticky := r.stick(service(2))
	r.publish(s, r.far)
	r.awaitServers(s, "far")

	l := r.load()
	for _, h := range kept {
		l.repeat(h.same)
	}
	l.connect(s, r.clients()...)
	l.more(some)
	for _, next := range []layout{other, ours} {
		r.become(next)
		l.more(some)
		sticky()
	}
	l.end()
	return kept
}

// holdAll opens connections of every kind of client: over TCP to both servers, over UDP to the one that stays an endpoint, as
// datagrams leave the other one; and some of the node itself that go around a server.
func (r *rig) holdAll(s lab.Service) []*held {
	r.t.Helper()
	var kept []*held
	for _, client := range r.clients() {
		for _, w := range ways() {
			kept = append(kept, r.hold(s, client, w, "far"))
			if w.network == "tcp" {
				kept = append(kept, r.hold(s, client, w, "near"))
			}
		}
	}
	return append(kept, r.around(s)...)
}

// around opens connections of sockets of the node that are connected to the far server, which loses their SYNs: they are with the near one.
func (r *rig) around(s lab.Service) (moved []*held) {
	r.t.Helper()
	r.must(r.far.Netfilter(fmt.Sprintf("table inet deaf { chain input { type filter hook input priority filter; tcp dport %d tcp flags & (syn | ack) == syn drop; }; }", targetPort)))
	for _, six := range []bool{false, true} {
		var h *held
		for again := uint32(0); again == 0; {
			h = r.hold(s, r.here, way{"tcp", six}, "near")
			var err error
			again, err = h.Retransmits()
			r.must(err)
		}
		moved = append(moved, h)
	}
	r.must(r.far.Netfilter("delete table inet deaf"))
	return moved
}

// stick gives clients an affinity for the near server that their hash does not give all of them, and is a check that they
// keep it.
func (r *rig) stick(s lab.Service) func() {
	r.t.Helper()
	s.Affinity = 10800
	r.publish(s, r.near)
	clients := []*lab.Pod{}
	for i := range 6 {
		clients = append(clients, r.addPod(r.here, fmt.Sprintf("sticky-%d", i)))
	}
	r.awaitPods(clients...)
	check := func() {
		r.t.Helper()
		for _, client := range clients {
			for _, w := range ways() {
				answer, err := client.Ask(context.Background(), w.network, r.address(s, client, w), lab.DialOptions{Patience: patience})
				if err != nil || answer.Server != "near" {
					r.t.Fatalf("%s by %v is answered by %q, %v; its affinity is for near", client, w, answer.Server, err)
				}
			}
		}
	}
	r.awaitServers(s, "near")
	check()
	r.publish(s, r.near, r.far)
	return check
}
