// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/table"
)

func TestErrorsBecomeOneLineAndAnExitStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"none":          {nil, 0},
		"failed":        {errors.New("no"), 1},
		"usage":         {command.Usagef("no"), 2},
		"wrapped usage": {errors.Join(errors.New("a"), command.Usagef("b")), 2},
		"quiet":         {command.QuietError{}, 1},
	} {
		if got := command.ExitStatus(c.err); got != c.want {
			t.Errorf("%s: exit status %d, want %d", name, got, c.want)
		}
	}
	if got, want := table.OneLine("a\n  b\r\nc\x1b"), `a; b; c\x1b`; got != want {
		t.Errorf("one line: %q, want %q", got, want)
	}
}

// What a command says is lost where the disk is full: whoever reads it later must not take what is there for all.
func TestACommandWhoseOutputCannotBeWrittenFails(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: b}\n"
	if err := os.WriteFile(objects, []byte(pod), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"version", "help", "plan --help", "explain", "explain ejected", "explain -o json", "plan --node n1 -f " + objects, "dns query a.b -f " + objects,
		"dns names -f " + objects, "dns resolv-conf -f " + objects} {
		var errOut bytes.Buffer
		if status := run(t.Context(), strings.Fields(line), strings.NewReader(""), full, &errOut); status != command.ExitFailed {
			t.Errorf("%s: exit status %d, want %d", line, status, command.ExitFailed)
		}
		if !strings.HasSuffix(errOut.String(), "nearlb: write /dev/full: no space left on device\n") {
			t.Errorf("%s: standard error %q", line, &errOut)
		}
	}
}

func TestBadUsageSaysNothingOnStandardOutput(t *testing.T) {
	var out, errOut bytes.Buffer
	if status := run(t.Context(), []string{"plan", "--nothing"}, strings.NewReader(""), &out, &errOut); status != 2 {
		t.Errorf("exit status %d, want 2", status)
	}
	if out.Len() > 0 || strings.Count(errOut.String(), "\n") != 1 {
		t.Errorf("standard output %q, standard error %q: want nothing and one line", &out, &errOut)
	}
}

// started runs `nearlb agent` with a function in place of the agent and gives the options it got.
func started(t *testing.T, args ...string) (agent.Options, error) {
	t.Helper()
	var got agent.Options
	cmd := agentCommand(func(_ context.Context, o agent.Options) error { got = o; return nil })
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.ExecuteContext(t.Context())
	return got, err
}

func TestTheAgentTakesItsFlagsFromTheCommandLineThenFromTheEnvironment(t *testing.T) {
	t.Setenv("NEARLB_NODE_NAME", "from-environment")
	t.Setenv("NEARLB_SERVICE_CIDR", "10.96.0.1/12,fd00::/108")
	t.Setenv("NEARLB_SIZE_FLOW_SETS", "64")
	t.Setenv("NEARLB_DEBOUNCE", "7ms")
	t.Setenv("NEARLB_ZONE", "")
	var got agent.Options
	cmd := agentCommand(func(_ context.Context, o agent.Options) error { got = o; return nil })
	cmd.SetArgs([]string{"--node-name", "N1", "--node-ip", "192.0.2.1,fd00::1", "--pod-devices", "veth*,lxc*", "--attach", "clsact"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got.NodeName != "n1" || got.Debounce != 7*time.Millisecond || got.Sizes.FlowSets != 64 || got.AttachMethod != "clsact" {
		t.Errorf("got %+v", got)
	}
	if len(got.ServiceCIDRs) != 2 || got.ServiceCIDRs[0] != netip.MustParsePrefix("10.96.0.0/12") {
		t.Errorf("service CIDRs %v", got.ServiceCIDRs)
	}
	if len(got.NodeIPs) != 2 || len(got.PodDevices) != 2 || got.Sizes.Backends != bpf.DefaultLimits().Backends {
		t.Errorf("got %+v", got)
	}
}

func TestABadVariableIsNamed(t *testing.T) {
	t.Setenv("NEARLB_AUDIT_INTERVAL", "often")
	_, err := started(t, "--node-name", "n1")
	if command.ExitStatus(err) != 2 || !strings.Contains(err.Error(), `environment NEARLB_AUDIT_INTERVAL="often"`) {
		t.Errorf("got %v", err)
	}
}

func TestAddressesComeWithAPortOrWithout(t *testing.T) {
	for text, want := range map[string]string{
		"10.1.2.3": "10.1.2.3", "10.1.2.3:80": "10.1.2.3:80", "fd00::1": "fd00::1", "[fd00::1]": "fd00::1",
		"[fd00::1]:80": "[fd00::1]:80", "::ffff:10.1.2.3": "10.1.2.3",
	} {
		var flag addressFlag
		if err := flag.Set(text); err != nil || flag.String() != want {
			t.Errorf("%s: %s, %v; want %s", text, flag.String(), err, want)
		}
	}
	for _, text := range []string{"", "10.1", "10.1.2.3:0", "10.1.2.3:70000", "fe80::1%eth0", "[fe80::1%eth0]:80", "web", "[10.1.2.3"} {
		if err := new(addressFlag).Set(text); err == nil {
			t.Errorf("%q was taken for an address", text)
		}
	}
}

func TestFiltersKeepWhatWasAskedFor(t *testing.T) {
	for _, c := range []struct {
		asked string
		want  bool
	}{
		{"", true}, {"default/web", true}, {"web", true}, {"default/web:http", true}, {"web:http", true},
		{"default/we", false}, {"other/web", false}, {"default/web:dns", false}, {"eb", false}, {"web:", false},
	} {
		f := filter{service: c.asked}
		if got := f.keepsService("default/web", "http"); got != c.want {
			t.Errorf("--service %q keeps default/web:http: %v, want %v", c.asked, got, c.want)
		}
	}
}

func TestNumbersAreShort(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 9949: "9.9 kB", 12345: "12 kB", 999_600: "1.0 MB", 5e12: "5.0 TB"} {
		if got := size(bytes); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
	for seconds, want := range map[int64]string{-1: "0s", 119: "119s", 120: "2m", 7200: "2h"} {
		if got := idle(seconds); got != want {
			t.Errorf("%d seconds: %s, want %s", seconds, got, want)
		}
	}
}

// walk visits all commands.
func walk(cmd *cobra.Command, visit func(*cobra.Command)) {
	visit(cmd)
	for _, child := range cmd.Commands() {
		walk(child, visit)
	}
}

func TestHelpFitsEightyColumns(t *testing.T) {
	walk(Root(), func(cmd *cobra.Command) {
		if cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
			return // cobra's own text
		}
		var b bytes.Buffer
		cmd.SetOut(&b)
		if err := cmd.Help(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if len(strings.TrimRight(line, "\n")) > 80 {
				t.Errorf("%s: %d columns: %s", cmd.CommandPath(), len(line)-1, line)
			}
		}
	})
}

func TestCleanupRefusesWhileAnAgentHasTheLock(t *testing.T) {
	dir := t.TempDir()
	pins := filepath.Join(dir, "pins")
	lock, err := bpf.Lock(dir, pins)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.Mkdir(pins, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cleanup(pins, dir); !errors.Is(err, bpf.ErrLocked) || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(pins); err != nil {
		t.Error("the pins are gone")
	}
}

func TestCleanupRemovesTheStatusThatAKilledAgentWasWriting(t *testing.T) {
	dir := t.TempDir()
	pins := filepath.Join(dir, "pins")
	var want []string
	for _, file := range agent.StatusFiles(dir, pins) {
		if err := os.WriteFile(file, []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
		want = append(want, file)
	}
	if removed, err := cleanup(pins, dir); err != nil || !slices.Equal(removed, want) {
		t.Errorf("removed %v, %v; want %v", removed, err, want)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the directory has %v, %v; want nothing", left, err)
	}
}

func TestWatchingPrintsUntilItIsInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var out bytes.Buffer
	pages := 0
	again := watchFlags{on: true, interval: 100 * time.Millisecond}
	err := again.run(ctx, &out, func(w io.Writer, width int) error {
		if pages++; pages == 2 {
			stop()
		}
		_, err := io.WriteString(w, "page\n")
		return err
	})
	if err != nil || out.String() != "page\npage\n" {
		t.Errorf("printed %q, %v", out.String(), err)
	}
}

// The usage of each command is what cobra's own template makes of it, but for the lines of flags, which are folded.
func TestUsageIsAsCobrasTemplateHasIt(t *testing.T) {
	templated := Root()
	templated.SetUsageFunc(nil)
	templated.SetUsageTemplate(strings.ReplaceAll(templated.UsageTemplate(), ".FlagUsages", ".FlagUsagesWrapped 80"))
	want := map[string]string{}
	walk(templated, func(cmd *cobra.Command) { want[cmd.CommandPath()] = cmd.UsageString() })
	walk(Root(), func(cmd *cobra.Command) {
		if diff := cmp.Diff(want[cmd.CommandPath()], cmd.UsageString()); diff != "" {
			t.Errorf("%s, from the template's to ours:\n%s", cmd.CommandPath(), diff)
		}
	})
}
