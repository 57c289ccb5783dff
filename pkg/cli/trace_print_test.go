// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/explain"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/trace"
)

// Whatever the verdict, its meaning is folded where a terminal ends, and is one line where there is none.
func TestAnAnswerOfTraceFitsTheTerminal(t *testing.T) {
	packet := trace.Request{From: trace.FromPod, Protocol: lb.TCP, Source: netip.MustParseAddrPort("10.244.1.11:0"), To: netip.MustParseAddrPort("10.96.0.10:80")}
	told := 0
	for _, word := range explain.Words() {
		verdict, reason, _ := strings.Cut(word.Word, "-")
		if word.Kind != explain.Verdict {
			continue
		}
		told++
		answer := trace.Answer{Verdict: verdict, Reason: reason, Way: &trace.Way{Name: lb.OffNodeSNAT, Because: "the node of the backend has no tunnel, as its agent does not write an address for one"}}
		for _, width := range []int{0, 80} {
			var out strings.Builder
			if err := writeAnswer(&out, width, packet, answer); err != nil {
				t.Fatal(err)
			}
			if text := strings.Join(strings.Fields(out.String()), " "); !strings.Contains(text, answer.Way.Because) {
				t.Errorf("%s at %d: %s", word.Word, width, text)
			}
			if width == 0 && strings.Count(out.String(), "\n") != 4 {
				t.Errorf("%s: lines are folded where no terminal ends:\n%s", word.Word, out.String())
			}
			for line := range strings.Lines(out.String()) {
				if width > 0 && len(line) > width+1 {
					t.Errorf("%s: wider than the terminal: %q", word.Word, line)
				}
			}
		}
	}
	if told < 20 {
		t.Errorf("only %d verdicts were looked at", told)
	}
}

// Of packets some stay here and some leave: what each backend sees is told, the first packet's first, and each way.
func TestAnAnswerOfTraceTellsEachSourceAndEachWay(t *testing.T) {
	for _, addresses := range [][4]string{{"203.0.113.7", "192.0.2.1", "10.244.1.1", "10.244.2.1"}, {"2001:db8:7::7", "2001:db8::1", "fd00:10:244:1::1", "fd00:10:244:2::1"}} {
		var of [4]netip.Addr
		for i, text := range addresses {
			of[i] = netip.MustParseAddr(text)
		}
		client, own := of[0], of[1]
		packet := trace.Request{From: trace.FromNetwork, Protocol: lb.UDP, Source: netip.AddrPortFrom(client, 0), To: netip.MustParseAddrPort("10.96.0.10:80"), Count: 20}
		way := trace.Way{Name: lb.OffNodeSNAT, Because: "n2 takes no packets out of the tunnel"}
		answer := trace.Answer{Verdict: "translate", Reason: "balance", Source: &client, Way: &way, Backends: []trace.Backend{
			{Address: of[2], Port: 80, Tier: "node", Count: 5, Source: client}, {Address: of[3], Port: 80, Tier: "zone", Count: 9, Source: own, Way: &way},
			{Address: of[3], Port: 81, Tier: "zone", Count: 6, Source: client, Way: &trace.Way{Name: lb.OffNodeCarry, Because: "as nearlb.io/off-node or --off-node says"}},
		}}
		var out strings.Builder
		if err := writeAnswer(&out, 0, packet, answer); err != nil {
			t.Fatal(err)
		}
		want := "  source   " + addresses[0] + " (kept)  11 of 20, 55.0 %\n" +
			"           " + addresses[1] + " (replaced)  9 of 20, 45.0 %\n" +
			"  way      snat: n2 takes no packets out of the tunnel\n" +
			"           carry: as nearlb.io/off-node or --off-node says\n"
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("got\n%s\nwant at its end\n%s", out.String(), want)
		}
	}
}
