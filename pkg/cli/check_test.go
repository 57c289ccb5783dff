// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/bypass"
)

func TestWithoutPermissionOnlyThatIsSaid(t *testing.T) {
	rows := checkKernel([]bpf.Finding{
		{Feature: "permission to use BPF", Fatal: true, Error: "creating map: operation not permitted"},
		{Feature: "TCX links", Error: "load program: operation not permitted"},
		{Feature: "kernel BTF", Fatal: true, Means: "build it so", Since: "5.2", Error: "no such file"},
	})
	if len(rows) != 3 || rows[1].Result != missing || rows[2].Detail != "build it so (since Linux 5.2): no such file" {
		t.Errorf("got %v", rows)
	}
}

func TestAFeatureThatCanBeMissedIsAWarning(t *testing.T) {
	rows := checkKernel([]bpf.Finding{{Feature: "TCX links", Since: "6.6", Means: "clsact instead", Error: "invalid argument"}})
	if len(rows) != 2 || rows[1].Result != warning || !strings.Contains(rows[1].Detail, "since Linux 6.6") {
		t.Errorf("got %v", rows)
	}
}

func TestAKernelThatEndsNoSocketsIsAWarningThatSaysWhatFollows(t *testing.T) {
	if row := checkEnding(func() error { return nil }); row.Result != good {
		t.Errorf("got %v", row)
	}
	row := checkEnding(func() error { return unix.EOPNOTSUPP })
	if row.Result != warning || !strings.Contains(row.Detail, "CONFIG_INET_DIAG_DESTROY") || !strings.Contains(row.Detail, unix.EOPNOTSUPP.Error()) {
		t.Errorf("got %v", row)
	}
}

func TestATunnelOnAnOpenNetworkWithoutACookieIsAWarning(t *testing.T) {
	eth0 := bypass.Ways{Number: 1, Open: []string{"eth0"}}
	for _, row := range []struct {
		port  uint16
		asked bool
		ways  bypass.Ways
		err   error
		want  checkRow
	}{
		{0, false, eth0, nil, checkRow{"tunnel", good, "no tunnel"}},
		{6091, true, eth0, nil, checkRow{"tunnel", good, "have a cookie"}},
		{6091, false, bypass.Ways{Number: 2, Heeded: 1}, nil, checkRow{"tunnel", good, "would leave by WireGuard alone: a node that gets them by such a device takes none"}},
		{6091, false, bypass.Ways{Number: 2, Heeded: 2}, nil, checkRow{"tunnel", good, "not taken: policies of IPsec"}},
		{6091, false, bypass.Ways{}, nil, checkRow{"tunnel", good, "no other node is known"}},
		{6091, false, bypass.Ways{Number: 3, Heeded: 1, Open: []string{"eth0", "eth1"}}, nil, checkRow{"tunnel", warning, "leave by eth0, eth1 without a cookie"}},
		{6091, false, bypass.Ways{}, unix.EPERM, checkRow{"tunnel", warning, unix.EPERM.Error()}},
	} {
		got := tunnelRow(row.port, row.asked, func() (bypass.Ways, error) { return row.ways, row.err })
		if got.Subject != row.want.Subject || got.Result != row.want.Result || !strings.Contains(got.Detail, row.want.Detail) {
			t.Errorf("got %v, want %v", got, row.want)
		}
	}
}

func TestEveryTableOfASizeHasItsFlag(t *testing.T) {
	flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	addSizeFlags(flags, &agent.Options{})
	sizes := bpf.Sizes{}
	for _, table := range []string{bpf.NearlbMapFrontends, bpf.NearlbMapRecords, bpf.NearlbMapSlots, bpf.NearlbMapBackends, bpf.NearlbMapBackendCounters, bpf.NearlbMapSynTimes, bpf.NearlbMapFlows,
		bpf.NearlbMapAffinity, bpf.NearlbMapFragments, bpf.NearlbMapSourceRanges, bpf.NearlbMapServiceCounters, bpf.NearlbMapNames} {
		if name := strings.TrimPrefix(bpf.SizeFlag(table), "--"); sizes.Of(table) == nil || flags.Lookup(name) == nil {
			t.Errorf("table %s has no flag --%s, or no size", table, name)
		}
	}
}

// A detail that is longer than the terminal goes on below its own beginning.
func TestALongFindingIsFolded(t *testing.T) {
	var out strings.Builder
	writeFindings(&out, 60, []checkRow{{"kernel", good, "Linux 6.18"}, {"shortcut", warning, "strict reverse path filter of pod10, and strict reverse path filter of pod11"}})
	want := `RESULT   SUBJECT   DETAIL
ok       kernel    Linux 6.18
warning  shortcut  strict reverse path filter of pod10, and
                   strict reverse path filter of pod11
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
