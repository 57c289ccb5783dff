// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMountLetsConnectionTrackingKeepHalfClosedConnectionsNoShorterThanAsked(t *testing.T) {
	for _, row := range []struct {
		before string
		least  time.Duration
		after  string
	}{
		{"60", time.Hour, "3600"},
		{"60", 0, "60"},
		{"7200", time.Hour, "7200"},
	} {
		file := filepath.Join(t.TempDir(), "setting")
		if err := os.WriteFile(file, []byte(row.before+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := extendCloseWait(io.Discard, file, row.least); err != nil {
			t.Errorf("%+v: %v", row, err)
		}
		if text, _ := os.ReadFile(file); strings.TrimSpace(string(text)) != row.after {
			t.Errorf("%+v: it is %q", row, text)
		}
	}
}

func TestMountSetsNothingWhereTheKernelTracksNoConnections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "setting")
	if err := extendCloseWait(io.Discard, file, time.Hour); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("it made the file")
	}
}
