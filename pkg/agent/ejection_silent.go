// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// A node that does not answer heartbeats any more is suspect; it is left out once none of its backends answers this node either. They are asked at
// several nodes at once.
const (
	askOfSilent = 4 // backends of a node, each at another address
	askSilent   = 8 // nodes
	askOutAgain = 4 // nodes a second, of those that are left out
)

// nodeOutTime is how long the backends of a silent node are left out before connections try them: until then Kubernetes has taken away those of a node
// without power. Some are asked every nodeAskTime meanwhile, for it may be that the node lives and heartbeats alone are lost.
const (
	nodeOutTime = time.Minute
	nodeAskTime = 10 * time.Second
)

// silentNode is one that answers no heartbeat.
type silentNode struct {
	asked bool   // its backends are
	rests uint64 // they are not asked again until then
	out   bool   // they are left out, or observed
	until uint64 // until then no connection tries one of them

	services []string // that had backends there when it was
}

// silentHeard is what came of asking a silent node's backends.
type silentHeard struct {
	node string
	reply
}

// followNode follows what heartbeats say of a node. One that is asked no more is not heard by that: what of its backends is left out stays so, and
// each is asked by itself.
func (e *ejector) followNode(n pulseNews) {
	was := e.silent[n.node]
	switch {
	case n.pulseChange == pulseSilent && was == nil:
		e.silent[n.node] = &silentNode{}
	case n.pulseChange == pulseStill && was == nil:
		e.log.Info("node is still left out", "node", n.node)
		e.silent[n.node] = &silentNode{out: true, services: servicesOf(e.tables.OnNodes(n.node)[n.node])}
		e.countSilent()
	case n.pulseChange == pulseHeard && was != nil:
		e.isHeard(n.node, "it answers")
	case n.pulseChange == pulseUnused && was != nil:
		delete(e.silent, n.node)
		e.countSilent()
		if was.out {
			e.log.Info("silent node is asked no more", "node", n.node)
			e.tellNode(n.node, was.services, journal.Change{What: "node-unused", Because: "it has gone, or no backend there takes connections"})
		}
	}
}

// askSilent asks backends of nodes that have become silent, of some at a time.
func (e *ejector) askSilent(ctx context.Context) {
	names := e.silentOnes(false, askSilent-e.askingSilent)
	if len(names) == 0 {
		return
	}
	on := e.tables.OnNodes(names...)
	for _, node := range names {
		e.askBackends(ctx, node, on[node])
	}
}

// askOut asks others than before of some nodes that are left out. One whose backends Kubernetes has taken away has none to ask, and stays as it is.
func (e *ejector) askOut(ctx context.Context, on map[string][]maps.Evidence) {
	for _, node := range e.silentOnes(true, len(e.silent)) {
		if all := slices.Clone(on[node]); len(all) > 0 && e.askingSilent < askSilent && e.askedOut.take(e.now(), askOutAgain) {
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			e.askBackends(ctx, node, all)
		}
	}
}

// silentOnes are those of the nodes that are left out, or are not, whose backends are due to be asked: so many, who waits longest first.
func (e *ejector) silentOnes(out bool, most int) (names []string) {
	for node, s := range e.silent {
		if s.out == out && !s.asked && s.rests <= e.now() {
			names = append(names, node)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(e.silent[a].rests, e.silent[b].rests) })
	return names[:min(len(names), max(most, 0))]
}

// askBackends asks some of a node's backends; what comes of that goes to judgeSilent.
func (e *ejector) askBackends(ctx context.Context, node string, all []maps.Evidence) {
	e.silent[node].asked = true
	e.askingSilent++
	at := someAddresses(all)
	go func() {
		select {
		case e.silentHeard <- silentHeard{node, e.anyAnswers(ctx, at)}:
		case <-ctx.Done():
		}
	}()
}

// someAddresses are those of a few backends of different pods, and of different Services where there are any: those of one may share their trouble.
// All are asked by TCP: whoever has no such port refuses, and so answers.
func someAddresses(all []maps.Evidence) (some []netip.AddrPort) {
	had, served := map[netip.Addr]bool{}, map[lb.ServiceName]bool{}
	for _, again := range []bool{false, true} {
		for _, v := range all {
			if len(some) < askOfSilent && !had[v.Address.Addr()] && (again || !served[v.Port.Service]) {
				had[v.Address.Addr()], served[v.Port.Service] = true, true
				some = append(some, v.Address)
			}
		}
	}
	return some
}

// anyAnswers tells whether any is there; where there is none to ask, nothing says that the node is not. Unknown: this node could not ask any.
func (e *ejector) anyAnswers(ctx context.Context, all []netip.AddrPort) reply {
	if len(all) == 0 {
		return replyAnswered
	}
	replies := make(chan reply, len(all))
	for _, at := range all {
		go func() { replies <- e.hear(ctx, at) }()
	}
	most := replyUnknown
	for range all {
		most = max(most, <-replies)
	}
	return most
}

// judgeSilent leaves a node out whose backends are silent as well, if nothing was heard of it meanwhile.
func (e *ejector) judgeSilent(h silentHeard) {
	e.askingSilent--
	s := e.silent[h.node]
	switch {
	case s == nil:
	case h.reply == replyAnswered:
		e.nodeAnswers(h.node)
	case h.reply == replyUnknown:
		s.asked, s.rests = false, e.now()+uint64(lookEvery)
		e.log.Debug("ask backends of silent node", "node", h.node, "problem", "this node cannot connect to any")
	case s.out:
		s.asked, s.rests = false, e.now()+uint64(nodeAskTime)
	default:
		s.out, s.asked, s.rests, s.until = true, false, e.now()+uint64(nodeAskTime), e.now()+uint64(nodeOutTime)
		backends := e.tables.OnNodes(h.node)[h.node]
		n := e.leaveNodeOut(s.until, backends)
		e.log.Warn("node does not answer", "node", h.node, "endpoints", n)
		to := fmt.Sprintf("new connections leave out %d backends", n)
		if e.heartbeats == lb.EjectionObserve {
			to = "observed only, its backends get connections as before"
		}
		s.services = servicesOf(backends)
		e.tellNode(h.node, s.services, journal.Change{What: "node-silent", To: to, Because: "no answer to three heartbeats, nor from its backends"})
	}
	e.countSilent()
}

// leaveNodeOut leaves the backends of a node out, as far as they may be, and says of how many that is so. Those that were left out already, for what
// they did themselves, are tried no sooner than the node's time is over, which is at nodeUntil.
func (e *ejector) leaveNodeOut(nodeUntil uint64, backends []maps.Evidence) (n int) {
	if e.heartbeats != lb.EjectionOn {
		return 0
	}
	now := e.now()
	until := now + uint64(nodeOutTime)
	for _, v := range backends {
		if v.Until != 0 {
			e.lengthen(v, nodeUntil)
			n++
			continue
		}
		if e.modeOf(v) != lb.EjectionOn || e.rests[v.Suspect] > now {
			continue
		}
		refused, err := e.tables.Eject(v.Suspect, until, 0)
		if err != nil || refused != "" {
			e.rests[v.Suspect] = now + askAgain
			e.log.Debug("leave backend of silent node out", "service", v.Port.String(), "backend", v.Address.String(), "problem", refused, "error", err)
			continue
		}
		n++
		e.ends[v.Suspect] = end{until: until}
		e.metrics.Ejection()
	}
	return n
}

// lengthen has a backend be left out until a later time, and for as many times in a row as before.
func (e *ejector) lengthen(v maps.Evidence, until uint64) {
	if v.ByNode() || v.Until >= until || e.now() >= until {
		return
	}
	if refused, err := e.tables.Eject(v.Suspect, until, v.Times); err == nil && refused == "" {
		e.ends[v.Suspect] = end{until: until}
	}
}

// nodeAnswers is that a backend of a node answers: whatever keeps it from answering heartbeats, it has power.
func (e *ejector) nodeAnswers(node string) {
	if e.silent[node] == nil {
		return
	}
	e.isHeard(node, "a backend there answers")
	e.nodes.alive(node)
}

// isHeard takes a node's backends back: what was known against them is of a time that is over.
func (e *ejector) isHeard(node, because string) {
	s := e.silent[node]
	delete(e.silent, node)
	e.countSilent()
	if !s.out {
		e.log.Debug("node answers no heartbeat", "node", node, "change", because)
		return
	}
	n, backends := 0, e.tables.OnNodes(node)[node]
	for _, v := range backends {
		delete(e.rests, v.Suspect)
		delete(e.ends, v.Suspect)
		delete(e.doubted, v.Suspect)
		if v.Until != 0 && e.heartbeats == lb.EjectionOn && e.tables.Readmit(v.Suspect) {
			n++
		}
	}
	e.log.Info("node is heard again", "node", node, "endpoints", n, "change", because)
	e.tellNode(node, append(servicesOf(backends), s.services...), journal.Change{What: "node-heard", To: fmt.Sprintf("%d backends get new connections again", n), Because: because})
}

// lookAtSilent asks of those that have become silent. Once a second it leaves those backends of silent nodes out that came since, and those that
// others had kept from that, and asks of nodes that are left out.
func (e *ejector) lookAtSilent(ctx context.Context) {
	e.askSilent(ctx) // first: nothing is done for these yet
	if now := e.now(); now-e.lookedAtSilent >= uint64(lookEvery) {
		e.lookedAtSilent = now
		var out []string
		for node, s := range e.silent {
			if s.out {
				out = append(out, node)
			}
		}
		on := e.tables.OnNodes(out...)
		for _, node := range out {
			e.leaveNodeOut(e.silent[node].until, on[node])
		}
		e.askOut(ctx, on)
	}
}

func (e *ejector) countSilent() {
	n := 0
	for _, s := range e.silent {
		if s.out {
			n++
		}
	}
	e.metrics.SilentNodes(n)
}

// changedServices are named at most in what is told of a node: more pods than run on one.
const changedServices = 256

// servicesOf are the names of the Services of backends, one for each.
func servicesOf(backends []maps.Evidence) (names []string) {
	for _, v := range backends {
		names = append(names, v.Port.Service.String())
	}
	return names
}

func (e *ejector) tellNode(node string, services []string, c journal.Change) {
	c.Because = "node " + node + ": " + c.Because
	c.Services = slices.Compact(slices.Sorted(slices.Values(services)))
	c.Services = c.Services[:min(len(c.Services), changedServices)]
	e.changes.tell(c)
	e.changes.show()
}
