// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// listening is a socket in a directory of its own.
func listening(t *testing.T) (*net.UnixListener, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "agent.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l, path
}

// The agent is stopped: its socket takes connections still.
func TestWhoAsksAnAgentThatSaysNothingIsToldSo(t *testing.T) {
	_, path := listening(t)
	err := askAgent(t.Context(), path, "/names", 50*time.Millisecond, func(*json.Decoder) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "is the agent stopped") {
		t.Errorf("got %v", err)
	}
}

// A list of many names may take long as a whole, as long as more of it comes.
func TestAnAgentThatGoesOnSayingSomethingIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		go func() {
			for range 3 {
				time.Sleep(900 * time.Millisecond)
				_, _ = there.Write([]byte("x"))
			}
		}()
		conn := patient{here, time.Second}
		for range 3 {
			if _, err := conn.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("nothing comes any more: %v", err)
		}
	})
}

// The socket is there for a moment before it has its mode.
func TestOnlyUsersThatMayAskAreAnswered(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, row := range []struct {
		user     uint32
		answered bool
	}{{me, true}, {me + 1, false}} {
		l, path := listening(t)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("7")) }), ReadHeaderTimeout: readTimeout}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(from{l, path, []uint32{row.user}}) }()
		var got int
		err := askAgent(t.Context(), path, "/names", readTimeout, func(d *json.Decoder) error { return d.Decode(&got) })
		if answered := err == nil && got == 7; answered != row.answered {
			t.Errorf("user %d of %d: %v, %d", row.user, me, err, got)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}
}
