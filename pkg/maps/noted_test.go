// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/lb"
)

// noted is what a publication says in lines.
func noted(t *testing.T, b *bench, d lb.Decision) (lines []string) {
	t.Helper()
	stats, err := b.Apply(d)
	if err != nil {
		t.Fatal(err)
	}
	return linesOf(stats)
}

func linesOf(stats Stats) (lines []string) {
	for _, n := range stats.Noted {
		at := n.Backend
		if !at.IsValid() {
			at = n.Frontend
		}
		lines = append(lines, fmt.Sprintf("%s %s %s: %q -> %q", n.What, n.Port, at, n.From, n.To))
	}
	return lines
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("noted\n%q\nwant\n%q", got, want)
	}
}

func TestPublicationsSayWhatChangedForClients(t *testing.T) {
	b := newTables(t, tinySizes())
	wantLines(t, noted(t, b, made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}))) // nobody asked
	b.Note(true)
	wantLines(t, noted(t, b, made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}))) // nothing changed
	wantLines(t, noted(t, b, made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Active, near: lb.TierZone})),
		`backend-added default/s1:http/TCP 10.244.0.2:8080: "" -> "active, zone"`)
	wantLines(t, noted(t, b, made(1, ep{host: 1, state: lb.Quiet, near: lb.TierNode}, ep{host: 2, state: lb.Draining, near: lb.TierZone})),
		`backend-removed default/s1:http/TCP 10.244.0.1:8080: "active, node" -> ""`,
		`backend-changed default/s1:http/TCP 10.244.0.2:8080: "active, zone" -> "draining, zone"`)
	wantLines(t, noted(t, b, made(1, ep{host: 2, state: lb.Active, near: lb.TierNode})), // the one that took no connections is gone
		`backend-changed default/s1:http/TCP 10.244.0.2:8080: "draining, zone" -> "active, node"`)

	d := made(1, ep{host: 2, state: lb.Active, near: lb.TierNode})
	d.Frontends[0].Affinity = time.Hour
	d.Frontends[0].External = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: lb.ListLocal}
	d.Frontends[0].Internal.Reason, d.Frontends[0].Internal.List = lb.ReasonLocal, lb.ListLocal
	d.Backends[0].Lists = []lb.List{lb.ListCluster, lb.ListLocal}
	wantLines(t, noted(t, b, d),
		`policy-changed default/s1:http/TCP 10.96.0.1:80: "from this node: balance all" -> "from this node: balance local"`,
		`traffic-changed default/s1:http/TCP 10.96.0.1:80: "from outside: balance all" -> "from outside: drop no-local-endpoints"`,
		`affinity-changed default/s1:http/TCP 10.96.0.1:80: "none" -> "3600s"`)

	addFrontend(&d, d.Frontends[0].Internal, lb.KindLoadBalancer, netip.MustParseAddrPort("203.0.113.1:80"))
	wantLines(t, noted(t, b, d), `frontend-added default/s1:http/TCP 203.0.113.1:80: "" -> "balance local"`)
	d.Frontends = slices.Clone(d.Frontends) // what was published must not be changed
	balancer := &d.Frontends[1]
	balancer.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	wantLines(t, noted(t, b, d), `source-ranges-changed default/s1:http/TCP 203.0.113.1:80: "anybody" -> "restricted"`)

	stats, err := b.Remove(d.Service)
	if err != nil {
		t.Fatal(err)
	}
	got := linesOf(stats)
	slices.Sort(got)
	wantLines(t, got, `backend-removed default/s1:http/TCP 10.244.0.2:8080: "active, node" -> ""`,
		`frontend-removed default/s1:http/TCP 10.96.0.1:80: "" -> ""`, `frontend-removed default/s1:http/TCP 203.0.113.1:80: "" -> ""`)
}

// The last endpoint of the node goes, and comes back: nobody touched a policy.
func TestAFallbackIsNoChangeOfPolicy(t *testing.T) {
	b := newTables(t, tinySizes())
	b.Note(true)
	near := made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Active, near: lb.TierZone})
	side := &near.Frontends[0].Internal
	side.Reason, side.List, side.Tiers = lb.ReasonLocal, lb.ListLocal, side.Tiers[:1]
	near.Frontends[0].External = *side
	near.Backends[0].Lists = []lb.List{lb.ListCluster, lb.ListLocal}
	far := made(1, ep{host: 1, state: lb.Quiet, near: lb.TierNode}, ep{host: 2, state: lb.Active, near: lb.TierZone})
	far.Frontends[0].Internal.Reason = lb.ReasonLocalFallback
	far.Frontends[0].External = far.Frontends[0].Internal
	noted(t, b, near)
	const frontend = "traffic-changed default/s1:http/TCP 10.96.0.1:80: "
	wantLines(t, noted(t, b, far), frontend+`"balance local" -> "balance local-fallback"`, `backend-removed default/s1:http/TCP 10.244.0.1:8080: "active, node" -> ""`)
	wantLines(t, noted(t, b, near), frontend+`"balance local-fallback" -> "balance local"`, `backend-added default/s1:http/TCP 10.244.0.1:8080: "" -> "active, node"`)
}

func TestAFrontendThatGoesToAnotherServiceIsNotedForBoth(t *testing.T) {
	b := newTables(t, tinySizes())
	b.Note(true)
	second, first := made(2, ep{host: 2, state: lb.Active, near: lb.TierNode}), made(1, ep{host: 1, state: lb.Active, near: lb.TierNode})
	second.Frontends[0].Key = first.Frontends[0].Key
	noted(t, b, second)
	got := noted(t, b, first)
	slices.Sort(got)
	wantLines(t, got, `backend-added default/s1:http/TCP 10.244.0.1:8080: "" -> "active, node"`,
		`frontend-added default/s1:http/TCP 10.96.0.1:80: "" -> "balance all"`, `frontend-removed default/s2:http/TCP 10.96.0.1:80: "" -> ""`)
}
