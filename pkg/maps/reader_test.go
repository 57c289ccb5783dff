// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"errors"
	"iter"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

func collect[T any](t *testing.T, rows iter.Seq2[T, error]) (all []T) {
	t.Helper()
	for row, err := range rows {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, row)
	}
	return all
}

func compare[T any](t *testing.T, got, want []T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// published is a service with a node's and a zone's backend.
func published(t *testing.T) *bench {
	b := newTables(t, tinySizes())
	d := made(1, ep{host: 1, state: lb.Active, near: lb.TierNode}, ep{host: 2, state: lb.Draining, near: lb.TierZone}, ep{host: 3, state: lb.Quiet, near: lb.TierCluster})
	d.Frontends[0].External = lb.Side{Action: lb.Drop, Reason: lb.ReasonNoLocalEndpoints, List: lb.ListLocal}
	d.Frontends[0].Affinity = 3600e9
	b.apply(t, d)
	return b
}

func TestFrontendRowsAreThoseOfThePlan(t *testing.T) {
	b := published(t)
	b.store.serviceCounters.(*memoryCounters[bpf.NearlbServiceCounter]).values[1] = bpf.NearlbServiceCounter{Connections: 5, Dropped: 2}
	compare(t, collect(t, b.Reader().Frontends()), []FrontendRow{{
		Service: "default/s1", Port: "http", Protocol: "TCP", Kind: "ClusterIP", Address: netip.MustParseAddr("10.96.0.1"), FrontendPort: 80,
		Internal: SideRow{Action: "balance", Reason: "all", Tiers: []TierRow{
			{"node", 1, []TierBackendRow{{hostAddress(1).Addr(), 8080, "n1", "z1", "active"}}},
			{"zone", 1, []TierBackendRow{{hostAddress(2).Addr(), 8080, "n2", "z0", "draining"}}},
		}},
		External:        SideRow{Action: "drop", Reason: "no-local-endpoints", Tiers: []TierRow{}},
		AffinitySeconds: 3600, SourceRanges: []string{}, Connections: 5, Dropped: 2,
	}})
}

func TestBackendRowsSayWhereAndHowTheyAre(t *testing.T) {
	b := published(t)
	b.store.backendCounters.(*memoryCounters[bpf.NearlbBackendCounter]).values[1] = bpf.NearlbBackendCounter{Connections: 5, BytesTo: 7}
	row := BackendRow{Service: "default/s1", Port: "http", Protocol: "TCP", BackendPort: 8080, Generation: 1}
	one, two, three := row, row, row
	one.Address, one.Node, one.Zone, one.Tier, one.State, one.Lists, one.ID = hostAddress(1).Addr(), "n1", "z1", "node", "active", []string{"cluster"}, 1
	one.Connections, one.BytesTo = 5, 7
	two.Address, two.Node, two.Zone, two.Tier, two.State, two.Lists, two.ID = hostAddress(2).Addr(), "n2", "z0", "zone", "draining", []string{"cluster"}, 2
	whole := 1.0 // each is alone in its tier
	one.Share, two.Share = &whole, &whole
	three.Address, three.Node, three.Zone, three.Tier, three.State, three.Lists, three.ID = hostAddress(3).Addr(), "n3", "z1", "cluster", "quiet", []string{}, 3
	compare(t, collect(t, b.Reader().Backends()), []BackendRow{one, two, three})
}

// What the flow table remembers is told of backends and of frontends; entries of an id's endpoint before are not.
func TestRowsCountTheConnectionsThatTheFlowTableRemembers(t *testing.T) {
	b := published(t)
	refused := uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_RESET)
	for place, f := range []bpf.NearlbFlow{
		{Backend: 2, Generation: 1, Seen: seenEstablished}, {Backend: 2, Generation: 1, Seen: seenEstablished}, {Backend: 2, Generation: 1, Seen: refused},
		{Backend: 2, Generation: 1, Touched: b.store.clock.jiffies() - 11*b.store.clock.perSecond()}, {Backend: 2, Generation: 7, Seen: seenEstablished},
		{Backend: 1, Generation: 1, Flags: flowDirect, Seen: seenEstablished},
	} {
		f.Word, f.Protocol, f.Service, f.Frontend, f.FrontendPort = flowLive, 6, 1, address16(netip.MustParseAddr("10.96.0.1")), swap16(80)
		putFlow(b.store, uint32(place), f)
	}
	for _, row := range collect(t, b.Reader().Backends()) {
		if want := (row.ID == 2); row.Open != 3*oneIf(want) || row.Refused != oneIf(want) || row.Unanswered != oneIf(want) {
			t.Errorf("backend %d: %d open, %d refused, %d unanswered", row.ID, row.Open, row.Refused, row.Unanswered)
		}
	}
	if row := collect(t, b.Reader().Frontends())[0]; row.Open != 4 {
		t.Errorf("of the frontend %d are open, want 4", row.Open)
	}
}

func TestFlowRowsAreSeenFromTheClient(t *testing.T) {
	b := published(t)
	client, frontend := netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("10.96.0.1")
	flow := bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Client: address16(client), Frontend: address16(frontend),
		KeyPort: swap16(40000), TwinPort: swap16(40000), FrontendPort: swap16(80), Protocol: 6, Backend: 2, Generation: 1, Service: 1,
		Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)}
	putFlow(b.store, 0, flow)
	alias := flow
	alias.Flags, alias.KeyPort, alias.TwinPort = flowAlias, swap16(50001), swap16(40000)
	putFlow(b.store, 9, alias)
	direct := flow
	direct.Flags, direct.Frontend, direct.FrontendPort, direct.Service, direct.KeyPort = flowDirect, address16(hostAddress(2).Addr()), swap16(8080), 0, swap16(40001)
	putFlow(b.store, 17, direct)
	old := flow
	old.Generation, old.KeyPort = 9, swap16(40002)
	old.Touched -= 100 * b.store.clock.perSecond()
	old.Seen = 0
	putFlow(b.store, 18, old)
	writing := flow
	writing.Word = uint32(bpf.NearlbFlowPhaseFLOW_WRITING)
	putFlow(b.store, 19, writing)

	want := FlowRow{Service: "default/s1", Port: "http", Protocol: "TCP", Client: client, ClientPort: 40000, Source: client, SourcePort: 40000,
		Frontend: frontend, FrontendPort: 80, Backend: hostAddress(2).Addr(), BackendPort: 8080, BackendState: "draining",
		Flags: []string{}, State: "open", Seen: []string{"reply", "established"}, Node: "n2", Zone: "z0"}
	wantAlias := want
	wantAlias.Flags, wantAlias.SourcePort = []string{"alias"}, 50001
	wantDirect := FlowRow{Protocol: "TCP", Client: client, ClientPort: 40001, Source: client, SourcePort: 40000, Frontend: hostAddress(2).Addr(), FrontendPort: 8080,
		Backend: hostAddress(2).Addr(), BackendPort: 8080, Flags: []string{"direct"}, State: "open", Seen: want.Seen}
	wantOld := want
	wantOld.ClientPort, wantOld.Backend, wantOld.BackendPort, wantOld.BackendState = 40002, netip.Addr{}, 0, "stale"
	wantOld.Node, wantOld.Zone, wantOld.Seen, wantOld.IdleSeconds, wantOld.Expired, wantOld.State = "", "", []string{}, 100, true, "expired"
	compare(t, collect(t, b.Reader().Flows()), []FlowRow{want, wantAlias, wantDirect, wantOld})
}

// What a flow has seen, in a word; the states of those that go on come first.
func TestEachStateOfAFlowIsSomeFlows(t *testing.T) {
	const (
		client, server = uint32(bpf.NearlbFlowSeenSEEN_CLIENT_FIN), uint32(bpf.NearlbFlowSeenSEEN_SERVER_FIN)
		reply, both    = uint32(bpf.NearlbFlowSeenSEEN_REPLY), uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)
		reset          = uint32(bpf.NearlbFlowSeenSEEN_RESET)
	)
	b := published(t)
	e := newExpiry(b.store.clock)
	said := []string{}
	for _, seen := range []uint32{0, reply, both, both | client, both | client | server, both | client | reset, 0} {
		f := bpf.NearlbFlow{Protocol: 6, Touched: e.now, Seen: seen}
		if len(said) == 6 {
			f.Touched -= 100 * e.perSecond
		}
		said = append(said, e.state(&f))
		if last := said[len(said)-1]; GoesOn(last) != (last != FlowExpired && !closed(seen)) {
			t.Errorf("%s goes on: %v", last, GoesOn(last))
		}
	}
	compare(t, said, FlowStates())
}

// The time is read once for a walk of the table, which may take seconds: connections whose packets come meanwhile are in use all the more, and an
// exchange of tables that took them for expired would leave them behind.
func TestAConnectionInUseDoesNotExpireWhileItsTableIsWalked(t *testing.T) {
	e := newExpiry(standing{})
	for _, seconds := range []uint32{0, 1, 2, 10, 59} {
		f := bpf.NearlbFlow{Protocol: 6, Touched: e.now + seconds*e.perSecond + 1, Seen: uint32(bpf.NearlbFlowSeenSEEN_REPLY | bpf.NearlbFlowSeenSEEN_ESTABLISHED)}
		if e.expired(&f) || e.surely(&f) || e.idle(&f) != 0 {
			t.Errorf("its last packet came %d seconds after the walk began: idle for %d ticks, expired %v", seconds, e.idle(&f), e.expired(&f))
		}
	}
	if f := (bpf.NearlbFlow{Protocol: 6, Touched: e.now - 200*e.perSecond}); !e.expired(&f) {
		t.Error("a SYN that nobody answered does not expire")
	}
}

func TestFlowRowsNameTheSourceThatTheBackendSees(t *testing.T) {
	b := published(t)
	node := netip.MustParseAddr("192.0.2.1")
	if err := b.Configure(Config{Node4: node}); err != nil {
		t.Fatal(err)
	}
	flow := bpf.NearlbFlow{Word: flowLive, Client: address16(netip.MustParseAddr("203.0.113.9")), Frontend: address16(node), Protocol: 6,
		KeyPort: swap16(40000), TwinPort: swap16(61000), Flags: flowSNAT, Source: b.sources.index(node)}
	putFlow(b.store, 0, flow)
	flow.Flags, flow.Source, flow.Client, flow.KeyPort = flowHairpin, 0, address16(netip.MustParseAddr("fd00::9")), swap16(40001)
	putFlow(b.store, 1, flow)
	rows := collect(t, b.Reader().Flows())
	if len(rows) != 2 || rows[0].Source != node || rows[0].SourcePort != 61000 || rows[1].Source != DefaultLoopback6() {
		t.Errorf("rows %+v", rows)
	}
}

func TestAffinityAndVerdictsAreNamed(t *testing.T) {
	b := published(t)
	client := netip.MustParseAddr("fd00::9")
	key := bpf.NearlbAffinityKey{Client: address16(client), Service: 1}
	if err := b.store.affinity.put(key, bpf.NearlbAffinityValue{Backend: 1, Generation: 1, Touched: b.store.clock.boot() + 1e12}); err != nil {
		t.Fatal(err)
	}
	compare(t, collect(t, b.Reader().Affinity()), []AffinityRow{{Service: "default/s1", Port: "http", Protocol: "TCP", Client: client,
		Backend: hostAddress(1).Addr(), BackendPort: 8080, State: "active"}})

	index := uint32(bpf.NearlbHookHOOK_TO_POD)*uint32(bpf.NearlbVerdictVERDICT_MAX) + uint32(bpf.NearlbVerdictVERDICT_TRANSLATE_REPLY)
	b.store.verdicts.(*memoryCounters[bpf.NearlbVerdictCounter]).values[index] = bpf.NearlbVerdictCounter{Packets: 3, Bytes: 300}
	full := uint32(bpf.NearlbHookHOOK_FROM_NET)*uint32(bpf.NearlbVerdictVERDICT_MAX) + uint32(bpf.NearlbVerdictVERDICT_DROP_PORTS_FULL)
	b.store.verdicts.(*memoryCounters[bpf.NearlbVerdictCounter]).values[full] = bpf.NearlbVerdictCounter{Packets: 2, Bytes: 120}
	refused := uint32(bpf.NearlbHookHOOK_SOCK)*uint32(bpf.NearlbVerdictVERDICT_MAX) + uint32(bpf.NearlbVerdictVERDICT_REJECT_NO_ENDPOINTS)
	b.store.verdicts.(*memoryCounters[bpf.NearlbVerdictCounter]).values[refused] = bpf.NearlbVerdictCounter{Packets: 1}
	compare(t, collect(t, b.Reader().Verdicts()), []VerdictRow{{Hook: "to_pod", Verdict: "translate", Reason: "reply", Packets: 3, Bytes: 300},
		{Hook: "from_net", Verdict: "drop", Reason: "ports-full", Packets: 2, Bytes: 120}, {Hook: "sock", Verdict: "reject", Reason: "no-endpoints", Packets: 1}})
}

func TestFillCountsWhatIsInForce(t *testing.T) {
	fill := map[string]FillRow{}
	b := published(t)
	node := DeviceSources{Source4: netip.MustParseAddr("192.0.2.1")}
	err := errors.Join(b.Configure(Config{Node4: node.Source4, Node6: netip.MustParseAddr("2001:db8::1"), Devices: map[uint32]DeviceSources{7: node}}),
		b.store.socks.put(bpf.NearlbSockKey{Cookie: 1}, bpf.NearlbSockValue{}),
		b.store.fragments.put(bpf.NearlbFragmentKey{Id: 1}, bpf.NearlbFragmentValue{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range collect(t, b.Reader().Fill()) {
		fill[row.Table] = row
	}
	for table, used := range map[string]uint64{"frontends": 2, "records": 2, "slots": 2, "backends": 3, "flows": 0, "names": 6,
		"fragments": 1, "socks": 1, "devices": 1, "snat_sources": 2} {
		if fill[table].Used != used || fill[table].Limit == 0 {
			t.Errorf("table %s: %+v, want %d used", table, fill[table], used)
		}
	}
}

func TestSettingsAreDumpedAndKept(t *testing.T) {
	b := newTables(t, tinySizes())
	c := Config{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:10:96::/108")},
		Loopback4: netip.MustParseAddr("169.254.1.1")}
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	want := "service-cidr 10.96.0.0/12\nservice-cidr fd00:10:96::/108\nloopback 169.254.1.1 fd6e:6561:726c:6200::1\n"
	if got := text(t, b.Tables); got != want {
		t.Errorf("dump\n%swant\n%s", got, want)
	}
	b.store.watch(func() { t.Error("the same settings were written again") })
	if err := b.Configure(c); err != nil {
		t.Fatal(err)
	}
	b.store.watch(func() {})
	nine := Config{Netns: 7}
	for i := range 9 {
		nine.ServiceCIDRs = append(nine.ServiceCIDRs, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16))
	}
	if err := b.Configure(nine); err == nil || !strings.Contains(err.Error(), "left out [10.8.0.0/16]") {
		t.Errorf("nine service CIDRs: %v", err)
	}
	if told, err := b.Config(); err != nil || len(told.ServiceCIDRs) != 8 || told.Netns != 7 {
		t.Errorf("after too many service CIDRs the programs are told %+v, %v", told, err)
	}
}
