// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
)

// Tables that a dead agent left are told to be so, on standard error: what reads the rows is not disturbed.
func TestTheTablesOfADeadAgentSaySinceWhenTheyAre(t *testing.T) {
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	for state, want := range map[agent.State]string{agent.Serving: "", agent.Stopped: "nearlb: the agent is stopped 5m ago"} {
		live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
		path := agent.StatusPath(live.lockDir, live.pins.pinPath)
		text, err := json.Marshal(map[string]any{"pid": os.Getpid(), "pidNamespace": namespace, "state": state, "version": "v9"})
		if err == nil {
			err = os.WriteFile(path, text, 0o600)
		}
		if before := time.Now().Add(-5 * time.Minute); err == nil && state == agent.Stopped {
			err = os.Chtimes(path, before, before)
		}
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		live.sayWhoseTables(&said)
		if !strings.HasPrefix(said.String(), want) || (want == "") != (said.String() == "") {
			t.Errorf("%s: %q", state, said.String())
		}
	}
	var said strings.Builder
	if (&agentFlags{pinFlags{t.TempDir()}, t.TempDir()}).sayWhoseTables(&said); said.Len() > 0 {
		t.Errorf("without a status: %q", said.String())
	}
}
