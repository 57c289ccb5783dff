// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"pgregory.net/rapid"
)

func tinySizes() bpf.Sizes {
	return bpf.Sizes{Frontends: 256, Records: 256, Slots: 1 << 16, Backends: 256, FlowSets: 4, Affinity: 64, Fragments: 16,
		SourceRanges: 64, Services: 64, Names: 128}
}

// testing stores: a fake whose clock the test turns.
type bench struct {
	*Tables
	time  time.Time
	known map[lb.ServiceName]lb.Decision // as applied last
	retry map[lb.ServiceName]bool        // those of Stats.Again that failed
}

// Apply does what an agent does: Services whose frontends changed hands are applied again.
func (b *bench) Apply(d lb.Decision) (Stats, error) {
	b.known[d.Service] = d
	stats, err := b.Tables.Apply(d)
	return b.applyAgain(stats), err
}

func (b *bench) Remove(name lb.ServiceName) (Stats, error) {
	delete(b.known, name)
	stats, err := b.Tables.Remove(name)
	return b.applyAgain(stats), err
}

func (b *bench) applyAgain(stats Stats) Stats {
	again := stats.Again
	stats.Again = nil
	for _, name := range again {
		d, found := b.known[name]
		if !found {
			continue
		}
		more, err := b.Apply(d)
		stats.add(more)
		if err != nil {
			b.retry[name] = true
		}
	}
	return stats
}

func newBench(t fataler, s *store) *bench {
	t.Helper()
	if _, own := s.clock.(*memoryClock); own {
		s.clock = standing{}
	}
	tables, err := open(s)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{tables, time.Now(), map[lb.ServiceName]lb.Decision{}, map[lb.ServiceName]bool{}}
	tables.now = func() time.Time { return b.time }
	tables.sharesOf = tinyShares
	tables.piece = searchPiece{sets: 1, clients: 1} // much happens in the middle of a search
	tables.tableSize = func(backends int) int { return []int{0, 1, 5, 7, 11, 13, 17, 19}[backends] }
	return b
}

// tinyShares is decide.SharesOf for tables that tests can afford.
func tinyShares(weights, due []uint32) []uint32 {
	if slices.Min(weights) == 0 {
		return nil
	}
	shares := decide.Shares(due, 23)
	if slices.Max(shares)-slices.Min(shares) <= 1 {
		return nil
	}
	return shares
}

// standing is a clock of programs that stands still, so that no connection grows older than a test says, however long that takes.
type standing struct{}

func (standing) jiffies() uint32   { return 0 }
func (standing) jiffies64() uint64 { return 0 }
func (standing) perSecond() uint32 { return 100 }
func (standing) boot() uint64      { return 0 }

// later tries again what failed, lets every grace pass and reclaims.
func (b *bench) later() {
	retry := b.retry
	b.retry = map[lb.ServiceName]bool{}
	b.applyAgain(Stats{Again: slices.Collect(maps.Keys(retry))})
	for range 4 {
		b.aMinute()
		for b.Searching() {
			b.Reclaim(b.time)
		}
	}
}

// aMinute passes, and a search begins, or goes on by a piece.
func (b *bench) aMinute() {
	b.time = b.time.Add(time.Minute)
	b.Reclaim(b.time)
}

func text(t fataler, tables *Tables) string {
	t.Helper()
	var out bytes.Buffer
	if err := tables.Dump(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func serviceNumber(n int) lb.ServiceName {
	return lb.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", n)}
}

// ep is an endpoint of a made decision.
type ep struct {
	host  int
	state lb.State
	near  lb.TierName

	weight uint32
}

// made builds a canonical decision: one TCP port, the endpoints of each tier that are usable, a ClusterIP.
func made(n int, endpoints ...ep) lb.Decision {
	name := serviceNumber(n)
	key := lb.PortKey{Name: "http", Protocol: lb.TCP}
	d := lb.Decision{Service: name}
	tiers := map[lb.TierName][]lb.BackendKey{}
	slices.SortFunc(endpoints, func(a, b ep) int { return cmp.Compare(a.host, b.host) })
	for _, e := range endpoints {
		b := lb.Backend{Key: lb.BackendKey{Port: key, Address: hostAddress(e.host)}, Node: fmt.Sprintf("n%d", e.host%5),
			Zone: fmt.Sprintf("z%d", e.host%2), State: e.state, Near: e.near}
		if e.state != lb.Quiet {
			b.Lists, b.Weight = []lb.List{lb.ListCluster}, e.weight
			tiers[e.near] = append(tiers[e.near], b.Key)
		}
		d.Backends = append(d.Backends, b)
	}
	side := lb.Side{Action: lb.Reject, Reason: lb.ReasonNoEndpoints}
	for _, near := range []lb.TierName{lb.TierNode, lb.TierZone, lb.TierCluster} {
		if len(tiers[near]) > 0 {
			side.Action, side.Reason, side.List = lb.Balance, lb.ReasonAll, lb.ListCluster
			side.Tiers = append(side.Tiers, lb.Tier{Name: near, Backends: tiers[near]})
		}
	}
	addFrontend(&d, side, lb.KindClusterIP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), 80))
	return d
}

func hostAddress(host int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(host >> 8), byte(host)}), 8080)
}

func addFrontend(d *lb.Decision, side lb.Side, kind lb.Kind, where netip.AddrPort) *lb.Frontend {
	d.Frontends = append(d.Frontends, lb.Frontend{
		Key: lb.FrontendKey{Address: where, Protocol: lb.TCP}, Port: lb.PortName{Service: d.Service, Port: "http", Protocol: lb.TCP},
		Kind: kind, Internal: side, External: side,
	})
	return &d.Frontends[len(d.Frontends)-1]
}

// active are endpoints in the cluster tier.
func active(hosts ...int) (all []ep) {
	for _, h := range hosts {
		all = append(all, ep{host: h, state: lb.Active, near: lb.TierCluster})
	}
	return all
}

// drawDecision makes a random decision for a service: tiers, states, a contested external IP, node ports, source ranges.
func drawDecision(t *rapid.T, n int) lb.Decision {
	var endpoints []ep
	weighted := rapid.IntRange(0, 2).Draw(t, "weighted") == 0
	for host := range 7 {
		state := rapid.SampledFrom([]lb.State{"", "", lb.Active, lb.Active, lb.Draining, lb.Quiet}).Draw(t, "state")
		near := rapid.SampledFrom([]lb.TierName{lb.TierNode, lb.TierZone, lb.TierCluster, lb.TierCluster}).Draw(t, "near")
		if state != "" {
			e := ep{host: host, state: state, near: near}
			if weighted {
				e.weight = rapid.SampledFrom([]uint32{1, 2, 100}).Draw(t, "weight")
			}
			endpoints = append(endpoints, e)
		}
	}
	d := made(n, endpoints...)
	side := d.Frontends[0].Internal
	if rapid.Bool().Draw(t, "external IP") {
		addFrontend(&d, side, lb.KindExternalIP, netip.MustParseAddrPort("192.0.2.1:80"))
	}
	if rapid.IntRange(0, 3).Draw(t, "capture") == 0 {
		addFrontend(&d, side, lb.KindExternalIP, netip.MustParseAddrPort("203.0.113.5:81")) // on the address of a load balancer
	}
	if rapid.Bool().Draw(t, "node port") {
		local := lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints}
		f := addFrontend(&d, side, lb.KindNodePort, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.77"), uint16(30000+n)))
		f.External = local
	}
	if rapid.Bool().Draw(t, "load balancer") {
		f := addFrontend(&d, side, lb.KindLoadBalancer, netip.MustParseAddrPort("203.0.113.5:80"))
		for i := range rapid.IntRange(0, 2).Draw(t, "ranges") {
			f.SourceRanges = append(f.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(i), 0}), 24))
		}
	}
	if rapid.Bool().Draw(t, "affinity") {
		d.Frontends[0].Affinity = 3 * time.Hour
	}
	return d
}

// answers is what every frontend should do for these decisions: key -> text. The naive model: best claim wins.
func answers(decisions map[lb.ServiceName]lb.Decision) map[frontendKey]string {
	type asked struct {
		claim
		wish
	}
	owner := map[frontendKey]asked{}
	for _, d := range decisions {
		for _, w := range wishes(&d) {
			mine := asked{claim{&service{name: d.Service}, unique.Make(w.port), kindOf(w.kind), d.Held}, w}
			if first, found := owner[w.key]; w.frontend != nil && (!found || mine.claim.compare(first.claim) < 0) {
				owner[w.key] = mine
			}
		}
	}
	all := map[frontendKey]string{}
	for key, c := range owner {
		all[key] = sideText(c.frontend.Internal) + "; " + sideText(c.frontend.External)
	}
	return all
}

func sideText(s lb.Side) string {
	parts := []string{string(s.Action), string(s.Reason)}
	for _, tier := range s.Tiers {
		var set []string
		for _, b := range tier.Backends {
			set = append(set, b.Address.String())
		}
		slices.Sort(set)
		parts = append(parts, string(tier.Name)+"="+strings.Join(set, ","))
	}
	return strings.Join(parts, " ")
}

// look answers as the programs do, from the memory alone. A slot whose backend is not usable shows in the answer.
func look(s *store, key frontendKey) string {
	number, found, _ := s.frontends.get(key)
	if !found {
		return ""
	}
	record := read[recordValue](s.records, number)
	if record.Key != key {
		return "another frontend's record"
	}
	parts := []string{}
	for _, side := range record.Sides {
		words := []string{bpf.ActionName(side.Action), bpf.ReasonName(side.Reason)}
		for i, tier := range side.Tiers {
			if tier.Count > 0 {
				words = append(words, bpf.TierName(side.TierNames[i])+"="+lookTier(s, tier.First, tier.Count, record.Service))
			}
		}
		parts = append(parts, strings.Join(words, " "))
	}
	return strings.Join(parts, "; ")
}

func lookTier(s *store, first, count, service uint32) string {
	ids := map[uint32]bool{}
	for i := range count {
		ids[s.slots.load(first+i, 0)] = true
	}
	var set []string
	for id := range ids {
		b := read[backendRow](s.backends, id)
		if id == 0 || b.Service != service || !usable(b.State) {
			return fmt.Sprintf("slot without a usable backend (%d, %s)", id, bpf.StateName(b.State))
		}
		set = append(set, AddrPortOf(b).String())
	}
	slices.Sort(set)
	return strings.Join(set, ",")
}

// allAnswers looks every key up that the tables or either of the expectations has.
func allAnswers(s *store, expected ...map[frontendKey]string) map[frontendKey]string {
	all := map[frontendKey]string{}
	for key := range s.frontends.all() {
		if !isAddressKey(key) {
			all[key] = look(s, key)
		}
	}
	for _, e := range expected {
		for key := range e {
			all[key] = look(s, key)
		}
	}
	return all
}

func asFull(err error) (*FullError, bool) {
	var full *FullError
	ok := errors.As(err, &full)
	return full, ok
}

// fataler is a test of either kind.
type fataler interface {
	Helper()
	Fatal(...any)
}
