// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// changeBytes are kept of changes in memory, and twice as much beside the status file: some 2,000 of them.
const changeBytes = 512 << 10

// changesAtOnce of one publication are told one by one.
const changesAtOnce = 64

// changes keeps what was published and why, and what became of the agent, for `nearlb changes`.
type changes struct {
	agent *daemon
	log   *journal.Log

	// Of whoever configures, one at a time.
	node    string // what is known of the own node, as last told
	settled bool   // it was known when everything was published
}

// ChangesPath is the file of the changes of a pin path.
func ChangesPath(lockDir, pinPath string) string {
	return filepath.Join(lockDir, bpf.LockName(lockDir, pinPath)+".changes.jsonl")
}

func newChanges(d *daemon) *changes {
	log, err := journal.OpenLog(ChangesPath(d.options.LockDir, d.options.PinPath), changeBytes)
	if err != nil {
		d.log.Warn("read journal", "error", err)
	}
	return &changes{agent: d, log: log}
}

// keep writes what is told to the file.
func (c *changes) keep(ctx context.Context) {
	c.log.Keep(ctx, c.wrote)
}

// sayEnded tells that the agent ends, and has it written.
func (d *daemon) sayEnded(err error) {
	change := journal.Change{What: "agent-stopped", Because: "it was told to; what it published stays in force"}
	if err != nil {
		change.Because = err.Error()
	}
	d.changes.tell(change)
	d.changes.wrote(d.changes.log.Write())
}

func (c *changes) wrote(err error) {
	if c.agent.diary.trouble("write journal", err) {
		c.agent.log.Error("write journal", "error", err)
	}
}

// tell adds a change. A loop without a daemon tells nobody.
func (c *changes) tell(change journal.Change) {
	if c == nil {
		return
	}
	change.Node, change.Time = c.agent.options.NodeName, time.Now().UTC()
	c.log.Add(change.Line())
}

// show has the status looked at again.
func (c *changes) show() {
	if c != nil {
		c.agent.diary.tell()
	}
}

// published tells what a publication changed for clients.
func (c *changes) published(o *outcome) {
	all := o.stats.Noted
	if c == nil || len(all) == 0 {
		return
	}
	why := reasons{outcome: o}
	if o.input.Service.Overflow.Given || o.input.Service.SlowStart > 0 {
		all = slices.DeleteFunc(slices.Clone(all), sharedOut)
	}
	for _, n := range all[:min(len(all), changesAtOnce)] {
		c.tell(journal.Change{Service: n.Port.Service.String(), Port: n.Port.Port, Protocol: n.Port.Protocol.String(), What: n.What,
			Backend: addressText(n.Backend), Frontend: addressText(n.Frontend), From: n.From, To: n.To, Because: why.of(n)})
	}
	if more := len(all) - changesAtOnce; more > 0 {
		c.tell(journal.Change{Service: o.service.String(), What: "more-changed", To: fmt.Sprint(more), Because: "as the " + fmt.Sprint(changesAtOnce) + " before"})
	}
}

// sharedOut tells whether a change is one of a share alone: with an overflow every endpoint's depends on all Nodes and on every other
// endpoint, with a slow start on the time, and would push all else out of the journal whenever one of these comes or goes.
func sharedOut(n maps.Noted) bool { return n.What == maps.WeightChanged }

func addressText(at netip.AddrPort) string {
	if !at.IsValid() {
		return ""
	}
	return at.String()
}

// reasons name the object behind what a publication changed.
type reasons struct {
	*outcome
	explains []lb.EndpointReason // made when asked for
}

// of is why: "EndpointSlice prod/web-abc: not ready".
func (r *reasons) of(n maps.Noted) string {
	of := r.service.Object() + ": "
	switch {
	case n.Port.Service != r.service && n.What == maps.FrontendRemoved:
		return of + "has the address now"
	case n.Port.Service != r.service:
		return of + "has changed"
	case r.held:
		return of + "held, and another Service asks for the address"
	case !r.exists:
		return of + "deleted, or not to be served any more"
	}
	switch n.What {
	case maps.BackendAdded, maps.BackendRemoved, maps.BackendChanged:
		return r.ofBackend(n)
	case maps.FrontendAdded, maps.FrontendRemoved:
		return of + n.Kind.Field()
	case maps.WeightChanged:
		return of + "nearlb.io/weight of its EndpointSlices"
	case maps.AffinityChanged:
		return of + "spec.sessionAffinity"
	case maps.SourcesChanged:
		return of + "spec.loadBalancerSourceRanges"
	case maps.PolicyChanged:
		if strings.HasPrefix(n.To, "from outside: ") {
			return of + "spec.externalTrafficPolicy"
		}
		return of + "spec.internalTrafficPolicy"
	}
	return of + "its endpoints, or what it asks for"
}

// ofBackend says what the endpoint's slice says now.
func (r *reasons) ofBackend(n maps.Noted) string {
	port := n.Port.Key()
	if !slices.ContainsFunc(r.input.Service.Ports, func(p lb.ServicePort) bool { return p.Name == port.Name && p.Protocol == port.Protocol }) {
		return r.service.Object() + ": its port is gone"
	}
	var found *lb.Endpoint
	others := map[string]bool{}
	for i := range r.input.Endpoints {
		e := &r.input.Endpoints[i]
		if e.Port != port || e.Address.Addr().Is4() != n.Backend.Addr().Is4() {
			continue
		}
		if others[e.Slice] = true; e.Address == n.Backend && (found == nil || e.Ready && !found.Ready) {
			found = e
		}
	}
	if found == nil {
		return r.sliceText(others) + ": removed"
	}
	return r.sliceText(map[string]bool{found.Slice: true}) + ": " + r.state(found, n)
}

// sliceText names a slice; of several, or none, whose they are.
func (r *reasons) sliceText(names map[string]bool) string {
	if len(names) != 1 {
		return "EndpointSlices of " + r.service.String()
	}
	for name := range names {
		return "EndpointSlice " + r.service.Namespace + "/" + name
	}
	return ""
}

func (r *reasons) state(e *lb.Endpoint, n maps.Noted) string {
	switch {
	case e.Terminating && e.Serving && n.What != maps.BackendRemoved:
		return "terminating, and serving"
	case e.Terminating && !e.Serving:
		return "terminating, and not serving"
	case e.Terminating:
		return "terminating"
	case !e.Ready:
		return "not ready"
	case n.What == maps.BackendAdded:
		return "ready"
	}
	if r.explains == nil {
		r.explains = decide.Decide(r.input, r.node).Endpoints
	}
	for _, e := range r.explains {
		if e.Address == n.Backend && e.Port == n.Port {
			return strings.ReplaceAll(string(e.Reason), "-", " ")
		}
	}
	return "ready"
}

// configured tells when the own node is another one for Services than before, once everything was published.
func (c *changes) configured(node lb.Node, tell bool) {
	if c == nil {
		return
	}
	text := fmt.Sprintf("zone %s, region %s, addresses %s, NodePorts at %s", orNone(node.Zone), orNone(node.Region), listText(node.Addresses), listText(node.NodePortIPs))
	if tell && c.settled && c.node != text {
		c.tell(journal.Change{What: "node-changed", From: c.node, To: text, Because: "Node " + node.Name + ", or the addresses of the host"})
	}
	c.node, c.settled = text, c.settled || tell // before, the host's addresses are being learnt
}

// grown tells which tables are larger than those before.
func (c *changes) grown(before, now *running) {
	var was bpf.Sizes
	if before != nil && before.objects != nil {
		was = before.objects.NearlbMaps.Sizes()
	}
	c.tell(journal.Change{What: "tables-grown", From: sizesText(was), To: sizesText(now.objects.NearlbMaps.Sizes()), Because: "a table was nearly full, or smaller than its flag says"})
}

func sizesText(s bpf.Sizes) string {
	return strings.Trim(fmt.Sprintf("%+v", s), "{}")
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

func listText(all []netip.Addr) string {
	texts := make([]string, len(all))
	for i, a := range all {
		texts[i] = a.String()
	}
	return orNone(strings.Join(texts, " "))
}

// answer writes what is kept, and with ?follow=1 what comes until the client goes away.
func (c *changes) answer(w http.ResponseWriter, ask *http.Request) {
	answerNews(w, ask, c.log.Ring, nil)
}

// ReadChanges has a running agent tell the changes that it keeps (journal.Change), and with follow what comes until ctx ends. Without an
// agent it is ErrNotAsked: see LeftChanges.
func ReadChanges(ctx context.Context, lockDir, pinPath string, follow bool, tell func(News) error) error {
	return readNews(ctx, lockDir, pinPath, "/changes", follow, tell)
}

// LeftChanges are the changes that an agent of the pin path left.
func LeftChanges(lockDir, pinPath string) ([][]byte, error) {
	return journal.ReadLog(ChangesPath(lockDir, pinPath), changeBytes)
}
