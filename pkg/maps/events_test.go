// SPDX-License-Identifier: Apache-2.0

package maps

import (
	"net/netip"
	"testing"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/lb"
)

func TestOnlyRefusalsThatAreSampledAreCounted(t *testing.T) {
	b := published(t)
	counters := b.store.verdicts.(*memoryCounters[bpf.NearlbVerdictCounter]).values
	verdicts := bpf.Verdicts()
	want := uint64(0)
	for hook := range bpf.Hooks() {
		for _, v := range verdicts {
			counters[uint32(hook*len(verdicts))+v.Number] = bpf.NearlbVerdictCounter{Packets: 1}
			switch v.Name {
			case "reject_echo", "reject_hello", "reject_name", "reject_too_big", "reject_time_exceeded", "reject_late_answer": // answers of a host, of a node, of a router, and of a client
				continue
			}
			if v.Class == bpf.Drop || v.Class == bpf.Reject {
				want++
			}
		}
	}
	if got, err := b.Reader().Refused(); err != nil || got != want || want == 0 {
		t.Errorf("counted %d, %v; want %d", got, err, want)
	}
}

func TestPacketsAreNamedByWhereTheyGo(t *testing.T) {
	b := published(t)
	d := b.known[serviceNumber(1)]
	at := d.Frontends[0].Key.Address
	for _, row := range []struct {
		to           netip.AddrPort
		protocol     lb.Protocol
		want         string
		whole, found bool
	}{
		{at, lb.TCP, d.Frontends[0].Port.String(), true, true},
		{at, lb.UDP, "default/s1", false, true},
		{netip.AddrPortFrom(at.Addr(), at.Port()+1), lb.TCP, "default/s1", false, true},
		{netip.AddrPortFrom(at.Addr(), 0), 0, "default/s1", false, true},
		{netip.MustParseAddrPort("198.51.100.1:80"), lb.TCP, "/", false, false},
	} {
		name, whole, found := b.PortAt(row.to, uint8(row.protocol))
		got := name.Service.String()
		if whole {
			got = name.String()
		}
		if got != row.want || whole != row.whole || found != row.found {
			t.Errorf("%v %v: %s, %v, %v", row.to, row.protocol, got, whole, found)
		}
	}
}

func TestEventsAreReadAsTheProgramsWriteThem(t *testing.T) {
	verdict := uint32(bpf.NearlbVerdictVERDICT_DROP_NO_LOCAL_ENDPOINTS)
	got := eventOf(&bpf.NearlbEvent{Time: 7, Verdict: verdict, Hook: uint32(bpf.NearlbHookHOOK_FROM_NET), Protocol: 6,
		Source: address16(netip.MustParseAddr("10.1.0.1")), SourcePort: swap16(40000),
		Destination: address16(netip.MustParseAddr("fd00::1")), DestinationPort: swap16(80)})
	want := Event{Booted: 7, Verdict: bpf.VerdictOf(verdict), Hook: "from_net", Protocol: 6,
		Source: netip.MustParseAddrPort("10.1.0.1:40000"), Destination: netip.MustParseAddrPort("[fd00::1]:80")}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := eventOf(&bpf.NearlbEvent{Verdict: 4711, Hook: 99}); got.Hook != "99" || got.Verdict.Reason != "4711" {
		t.Errorf("of a newer layout: %+v", got)
	}
}
