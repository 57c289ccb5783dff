// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
)

func newTables(t testing.TB, sizes bpf.Sizes) *bench {
	return newBench(t, memoryStore(sizes))
}

func (b *bench) apply(t testing.TB, d lb.Decision) Stats {
	t.Helper()
	stats, err := b.Apply(d)
	if err != nil {
		t.Fatal(err)
	}
	return stats
}

func hosts(first, count int) (all []int) {
	for i := range count {
		all = append(all, first+i)
	}
	return all
}

// large is a bench for services of real size.
func large(t testing.TB) *bench {
	b := newTables(t, bpf.Sizes{Frontends: 64, Records: 64, Slots: 1 << 22, Backends: 1 << 14, FlowSets: 4})
	b.tableSize = decide.TableSize
	return b
}

func (b *bench) ids(t testing.TB) map[string]uint32 {
	t.Helper()
	found := map[string]uint32{}
	for row, err := range b.Reader().Backends() {
		if err != nil {
			t.Fatal(err)
		}
		found[hostPort(row.Address, row.BackendPort)+" "+row.State] = row.ID
	}
	return found
}

// A19: what one changed endpoint costs does not grow with its service, but for the one table of slots it is in.
func TestOneEndpointOf5000CostsABoundedNumberOfWrites(t *testing.T) {
	b := large(t)
	b.apply(t, made(1, active(hosts(0, 5000)...)...))
	other := b.apply(t, made(2, active(9000)...))
	if other.Slots != 1 || other.Backends != 1 {
		t.Errorf("a service of one endpoint wrote %+v", other)
	}
	stats := b.apply(t, made(1, active(hosts(1, 5000)...)...))
	want := Stats{Frontends: 1, Records: 1, SlotRuns: 1, Slots: decide.TableSize(5000), Backends: 2, AddressFilter: 1}
	if !reflect.DeepEqual(stats, want) {
		t.Errorf("writes %+v, want %+v", stats, want)
	}
	if again := b.apply(t, made(1, active(hosts(1, 5000)...)...)); again.Total() != 0 {
		t.Errorf("the same decision again wrote %+v", again)
	}
}

// A17: a rolling update ends in exactly the new set, and nothing is left of the old.
func TestFullReplacementLeavesNothingBehind(t *testing.T) {
	b, cold := large(t), large(t)
	for first := 0; first <= 1000; first += 50 {
		b.apply(t, made(1, active(hosts(first, 1000)...)...))
	}
	b.later()
	cold.apply(t, made(1, active(hosts(1000, 1000)...)...))
	if text(t, b.Tables) != text(t, cold.Tables) {
		t.Error("the dump differs from a cold start's")
	}
	if got, want := b.backendIDs.used, 1000; got != want {
		t.Errorf("%d ids are used, want %d", got, want)
	}
	if got, want := b.slots.left, cold.slots.left; got != want {
		t.Errorf("%d slots are free, want %d", got, want)
	}
}

// C5, C6: an endpoint that is not ready keeps its id; so does one that went while a connection names it, and one that comes
// back before its id was needed.
func TestAnEndpointThatComesBackGetsItsIDBack(t *testing.T) {
	b := newTables(t, tinySizes())
	b.apply(t, made(1, active(1, 2)...))
	id := b.ids(t)["10.244.0.1:8080 active"]
	b.apply(t, made(1, ep{host: 1, state: lb.Quiet, near: lb.TierCluster}, ep{host: 2, state: lb.Active, near: lb.TierCluster}))
	if got := b.ids(t)["10.244.0.1:8080 quiet"]; got != id {
		t.Errorf("not ready: id %d, was %d", got, id)
	}
	before := text(t, b.Tables)
	b.apply(t, made(1, active(2)...))
	if got := b.ids(t)["10.244.0.1:8080 gone"]; got != id {
		t.Errorf("removed: id %d, was %d", got, id)
	}
	putFlow(b.store, 3, bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Backend: id, Generation: 1, Protocol: 6,
		Seen: uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)})
	b.later()
	if got := b.ids(t)["10.244.0.1:8080 gone"]; got != id {
		t.Errorf("removed, a connection names it: id %d, was %d", got, id)
	}
	b.apply(t, made(1, ep{host: 1, state: lb.Quiet, near: lb.TierCluster}, ep{host: 2, state: lb.Active, near: lb.TierCluster}))
	if text(t, b.Tables) != before {
		t.Error("the dump differs from before")
	}
	b.apply(t, made(1, active(1, 2)...))
	if got := b.ids(t)["10.244.0.1:8080 active"]; got != id {
		t.Errorf("back: id %d, was %d", got, id)
	}
}

// A search looks at a set of the flow table in each piece here, then at a client. What a connection names is found in whichever piece it is.
func TestASearchGoesOnWhereItStopped(t *testing.T) {
	for set := range uint32(4) {
		b := newTables(t, tinySizes())
		b.apply(t, made(1, active(1, 2)...))
		id := b.ids(t)["10.244.0.1:8080 active"]
		putFlow(b.store, flowPlace(set, flowWays-1), bpf.NearlbFlow{Word: flowLive, Touched: b.store.clock.jiffies(), Backend: id, Generation: 1, Protocol: 6,
			Seen: uint32(bpf.NearlbFlowSeenSEEN_ESTABLISHED)})
		for client := range byte(2) {
			key := bpf.NearlbAffinityKey{Client: bpf.NearlbAddress{Bytes: [16]byte{client}}, Service: 1}
			if err := b.store.affinity.put(key, bpf.NearlbAffinityValue{Backend: id, Generation: 1}); err != nil {
				t.Fatal(err)
			}
		}
		b.apply(t, made(1, active(2)...))
		b.aMinute()
		pieces := 1
		for ; b.Searching(); pieces++ {
			if len(b.gone) != 1 {
				t.Fatalf("set %d: freed in the middle of a search", set)
			}
			b.Reclaim(b.time)
		}
		if want := 4 + 2; pieces != want || len(b.gone) != 1 { // the last set and the first client are in one, the end of the clients is one
			t.Errorf("set %d: %d pieces, %d removed endpoints kept; want %d and the one that a connection names", set, pieces, len(b.gone), want)
		}
		if left := len(maps.Collect(b.store.affinity.all())); left != 0 {
			t.Errorf("set %d: %d clients are still sent to a removed endpoint", set, left)
		}
	}
}

func TestARemovedEndpointsIDIsFreeWhenItsConnectionsAreOver(t *testing.T) {
	b := newTables(t, tinySizes())
	b.apply(t, made(1, active(1, 2)...))
	id := b.ids(t)["10.244.0.1:8080 active"]
	closed := bpf.NearlbFlow{Word: flowLive, Backend: id, Generation: 1, Protocol: 6, Seen: uint32(bpf.NearlbFlowSeenSEEN_RESET)}
	closed.Touched = b.store.clock.jiffies() - 60*b.store.clock.perSecond()
	putFlow(b.store, 0, closed)
	key := bpf.NearlbAffinityKey{Service: 1}
	if err := b.store.affinity.put(key, bpf.NearlbAffinityValue{Backend: id, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	b.apply(t, made(1, active(2)...))
	b.Reclaim(b.time)
	if len(b.gone) != 1 {
		t.Error("freed before its grace")
	}
	b.later()
	if len(b.gone) != 0 || b.backendIDs.used != 1 {
		t.Errorf("%d ids are used", b.backendIDs.used)
	}
	if _, found, _ := b.store.affinity.get(key); found {
		t.Error("affinity still names the endpoint")
	}
	if b.store.backendKnown(hostAddress(1)).isSet(b.store.filter) {
		t.Error("the address filter still has the endpoint")
	}
}

func TestEqualTiersShareTheirSlots(t *testing.T) {
	b := newTables(t, tinySizes())
	d := made(1, active(1, 2, 3)...)
	addFrontend(&d, d.Frontends[0].Internal, lb.KindNodePort, netip.MustParseAddrPort("192.0.2.77:30001"))
	if stats := b.apply(t, d); stats.SlotRuns != 1 || stats.Records != 3 {
		t.Errorf("writes %+v, want one run of slots for two frontends of two sides, and three records", stats)
	}
}

// A full table keeps the service's old answer, does not touch others, and is over when there is room.
func TestAFullTableIsAnErrorThatNamesServiceAndLimit(t *testing.T) {
	small := func(change func(*bpf.Sizes)) bpf.Sizes {
		s := tinySizes()
		change(&s)
		return s
	}
	for table, sizes := range map[string]bpf.Sizes{
		"frontends": small(func(s *bpf.Sizes) { s.Frontends = 4 }),
		"records":   small(func(s *bpf.Sizes) { s.Records = 6 }),
		"slots":     small(func(s *bpf.Sizes) { s.Slots = 16 }),
		"backends":  small(func(s *bpf.Sizes) { s.Backends = 7 }),
		"names":     small(func(s *bpf.Sizes) { s.Names = 8 }),
	} {
		t.Run(table, func(t *testing.T) {
			b := newTables(t, sizes)
			b.apply(t, made(2, active(2)...))
			b.apply(t, made(1, active(1, 8)...))
			before := text(t, b.Tables)
			grown := made(2, active(3, 4, 5, 6, 7)...)
			addFrontend(&grown, grown.Frontends[0].Internal, lb.KindExternalIP, netip.MustParseAddrPort("192.0.2.1:80"))
			_, err := b.Apply(grown)
			full, ok := asFull(err)
			if !ok || full.Table != table || full.Service != serviceNumber(2) || !strings.Contains(err.Error(), "default/s2") {
				t.Fatalf("error %v, want a full table %s", err, table)
			}
			if text(t, b.Tables) != before {
				t.Error("the old answers are gone")
			}
			b.apply(t, made(1, active(8)...))
			if _, err := b.Remove(serviceNumber(1)); err != nil {
				t.Fatal(err)
			}
			b.later()
			b.apply(t, grown)
		})
	}
}

// Two services that ask for one frontend: who has it does not depend on who came first; the other waits and takes over.
func TestAFrontendOfTwoServicesBelongsToTheSameOneInAnyOrder(t *testing.T) {
	contested := func(n int) lb.Decision {
		d := made(n, active(n)...)
		addFrontend(&d, d.Frontends[0].Internal, lb.KindExternalIP, netip.MustParseAddrPort("192.0.2.1:80"))
		return d
	}
	one, two := newTables(t, tinySizes()), newTables(t, tinySizes())
	one.apply(t, contested(1))
	if stats := one.apply(t, contested(2)); len(stats.Problems) != 1 || !strings.Contains(stats.Problems[0].Message, "default/s1") {
		t.Errorf("problems %v", stats.Problems)
	}
	two.apply(t, contested(2))
	two.apply(t, contested(1))
	if text(t, one.Tables) != text(t, two.Tables) {
		t.Error("the order of events shows")
	}
	if problems := two.Problems(); len(problems) != 1 || problems[0].Object != "Service default/s2" {
		t.Errorf("problems %v", problems)
	}
	if _, err := one.Remove(serviceNumber(1)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text(t, one.Tables), "frontend default/s2:http/TCP ExternalIP 192.0.2.1:80") || len(one.Problems()) != 0 {
		t.Errorf("no take-over:\n%s", text(t, one.Tables))
	}
}

func TestAServiceAddressIsOneServicesForNoReasonOfOrder(t *testing.T) {
	b := newTables(t, tinySizes())
	d := made(1, active(1)...)
	addFrontend(&d, d.Frontends[0].Internal, lb.KindLoadBalancer, netip.MustParseAddrPort("203.0.113.5:80"))
	addFrontend(&d, d.Frontends[0].Internal, lb.KindNodePort, netip.MustParseAddrPort("192.0.2.77:30001"))
	b.apply(t, d)
	var got []string
	for row, err := range b.Reader().Addresses() {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, row.Address.String()+" "+row.Kind+" "+row.Service)
	}
	want := "10.96.0.1 ClusterIP default/s1,203.0.113.5 LoadBalancer default/s1"
	if strings.Join(got, ",") != want {
		t.Errorf("addresses %v, want %s", got, want)
	}
}

// Sources that are not allowed any more go at once; where a frontend stops asking, its ranges outlive those who still ask.
func TestSourceRangesGoAtOnceOrAfterTheirGrace(t *testing.T) {
	b := newTables(t, tinySizes())
	restricted := func(ranges ...string) lb.Decision {
		d := made(1, active(1)...)
		f := addFrontend(&d, d.Frontends[0].Internal, lb.KindLoadBalancer, netip.MustParseAddrPort("203.0.113.5:80"))
		for _, r := range ranges {
			f.SourceRanges = append(f.SourceRanges, netip.MustParsePrefix(r))
		}
		return d
	}
	left := func() int { return count(b.store.ranges) }
	b.apply(t, restricted("10.0.0.0/8", "192.0.2.0/24"))
	b.apply(t, restricted("192.0.2.0/24"))
	if left() != 1 || !strings.Contains(text(t, b.Tables), "sources=192.0.2.0/24") {
		t.Errorf("%d ranges left:\n%s", left(), text(t, b.Tables))
	}
	b.apply(t, restricted())
	if left() != 1 {
		t.Error("the range went while programs may hold the record that asks for it")
	}
	b.later()
	if left() != 0 {
		t.Errorf("%d ranges left", left())
	}
}
