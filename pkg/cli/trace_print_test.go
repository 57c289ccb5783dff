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
