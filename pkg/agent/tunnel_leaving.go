// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"sync/atomic"
	"time"

	tables "github.com/nearlb/nearlb/pkg/maps"
)

// A tunnel that is turned off by its flags stays for its connections, which would be lost: it answers no hello, so that other nodes send nothing new
// into it, nothing new goes there from this one, and what another node sends to open a connection goes back to it. It ends once the flow table was
// walked through and no connection was found in it.

// leavingTunnel is such a one.
type leavingTunnel struct {
	port    uint16
	cookies tables.Cookies // as the earlier agent left them
	over    atomic.Bool
}

// findLeaving looks for a tunnel that an earlier agent had, where this one has none. A port that SNAT gives its connections by now ends it at once.
func (o Options) findLeaving() (*leavingTunnel, error) {
	if o.tunnelPort() != 0 {
		return nil, nil
	}
	was, err := tables.PinnedTunnel(o.PinPath)
	if err != nil || was.Port == 0 || o.SNATPorts.Contains(was.Port) {
		return nil, err
	}
	return &leavingTunnel{port: was.Port, cookies: was.Cookies}, nil
}

// isOver says whether it has ended; of none, too.
func (t *leavingTunnel) isOver() bool { return t == nil || t.over.Load() }

// leave is of a tunnel what is left of it: everybody's connections, and nothing new.
func leave(t *tables.Tunnel) {
	t.Leaving = true
	for name, node := range t.Nodes {
		node.Carries, node.Direct, node.Unheard = false, false, true
		t.Nodes[name] = node
	}
}

// swept is told of each piece of the walk through the flow table. The walk counts that began once all was carried over from other tables, and the
// programs take nothing new.
func (l *loop) swept(tunneled int, more bool) {
	if l.leaving.isOver() {
		return
	}
	if !l.sweeping {
		l.sweepCounts = l.leavingTold.Load() && l.carriedOver()
	}
	if l.sweeping = more; more || !l.sweepCounts || tunneled > 0 {
		return
	}
	l.leaving.over.Store(true)
	l.log.Info("the tunnel between nodes has ended: no connection goes through it any more")
	l.tunnelChanged()
}

// followLeaving follows the keys of a tunnel that ends, until ctx does.
func (r *running) followLeaving(ctx context.Context) error {
	r.daemon.log.Info("the tunnel between nodes is turned off, and ends with its last connection")
	tick := time.NewTicker(helloEvery)
	defer tick.Stop()
	for !r.loop.leaving.isOver() {
		r.followKeys()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// carriedOver says whether no other tables are left whose connections are carried to these.
func (r *running) carriedOver() bool {
	r.leaving.Lock()
	defer r.leaving.Unlock()
	return r.carrier == nil
}
