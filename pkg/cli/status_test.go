// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
)

// Tables are made when the first list of objects is there: until then the agent's status file is all there is.
func TestTheStatusOfAnAgentWithoutTablesSaysThatItStarts(t *testing.T) {
	pins, locks := filepath.Join(t.TempDir(), "pins"), t.TempDir()
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	write := func(state agent.State) {
		text, err := json.Marshal(map[string]any{"pid": os.Getpid(), "pidNamespace": namespace, "state": state, "version": "v9"})
		if err == nil {
			err = os.WriteFile(agent.StatusPath(locks, pins), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	status := func(more ...string) (code int, out, errOut string) {
		var text, said bytes.Buffer
		code = run(t.Context(), append([]string{"status", "--pin-path", pins, "--lock-dir", locks}, more...), strings.NewReader(""), &text, &said)
		return code, text.String(), said.String()
	}
	if code, _, said := status(); code != 1 || !strings.Contains(said, "no agent has run here") {
		t.Errorf("without an agent: exit status %d, %q", code, said)
	}
	write(agent.Starting)
	if code, out, said := status(); code != 1 || !strings.HasPrefix(out, "agent     starting, process ") || said != "" {
		t.Errorf("of an agent that waits: exit status %d, %q, %q", code, out, said)
	}
	if code, out, _ := status("-o", "json"); code != 1 || !strings.Contains(out, `"tables": []`) || !strings.Contains(out, `"devices": []`) {
		t.Errorf("of an agent that waits, as JSON: exit status %d, %s", code, out)
	}
	write(agent.Stopped)
	if code, _, said := status(); code != 1 || !strings.Contains(said, "no agent has run here") {
		t.Errorf("of one that stopped before it made any: exit status %d, %q", code, said)
	}
}

// What an agent wrote before the clock was set back did not happen just now.
func TestATimeThatTheClockHasYetToReachIsSaid(t *testing.T) {
	now := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	s := agent.Status{State: agent.Serving, PID: 7, Running: true, Stale: true, Written: now.Add(2 * time.Hour)}
	if got, want := agentText(s, now), "stale: last seen at 2026-01-01T12:00:00Z by a clock that was ahead, and"; !strings.HasPrefix(got, want) {
		t.Errorf("%s, want %s ...", got, want)
	}
	if got := ago(now.Add(time.Second), now); got != "0s ago" { // of two processes' readings
		t.Errorf("a second ahead is %s", got)
	}
}
