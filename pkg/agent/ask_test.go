// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/ui"
)

// toAsk is of servers, and of those who ask them.
const toAsk = 10 * time.Second

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
	err := askAgent(t.Context(), path, "/names", 2*time.Second, func(*json.Decoder) error { return nil }) // by then the question is written
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

// once is a listener of one connection.
type once chan net.Conn

func (o once) Accept() (net.Conn, error) {
	if conn, more := <-o; more {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (o once) Close() error   { close(o); return nil }
func (o once) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

func TestWhoFollowsIsToldWhatComesAfterALongQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := newTold(t)
		here, there := net.Pipe()
		listener := make(once, 1)
		listener <- there
		ctx, end := context.WithCancel(t.Context())
		served := make(chan struct{})
		go func() { _ = ui.Serve(ctx, listener, http.HandlerFunc(told.answer), askTime); close(served) }()
		dial := func(context.Context, string, string) (net.Conn, error) { return here, nil }
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
		answer, err := client.Get("http://agent/changes?follow=1")
		if err != nil {
			t.Fatal(err)
		}
		heard, ended := 0, make(chan error, 1)
		go func() {
			ended <- eachNews(json.NewDecoder(answer.Body), true, func(News) error { heard++; return nil })
		}()
		for n, size := range []int{1, 1 << 16, 1} { // what is sent when it is flushed, and before
			time.Sleep(askTime + time.Second)
			told.tell(journal.Change{What: "published-again", Because: strings.Repeat("x", size)})
			if synctest.Wait(); heard != n+1 {
				t.Errorf("%d changes were told, and %d heard", n+1, heard)
			}
		}
		end()
		if err := <-ended; !errors.Is(err, ErrAgentEnded) {
			t.Errorf("ended with %v", err)
		}
		_ = answer.Body.Close()
		<-served
	})
}

// receiver is a client that counts what it is sent.
type receiver struct {
	http.ResponseWriter // of no use: a header is all that is asked for
	text                bytes.Buffer
}

func (r *receiver) Header() http.Header              { return http.Header{} }
func (r *receiver) Write(text []byte) (int, error)   { return r.text.Write(text) }
func (r *receiver) FlushError() error                { return nil }
func (r *receiver) SetWriteDeadline(time.Time) error { return nil }

// In a flood events come at many times in a second: how many packets no event tells of is told once in it.
func TestWhoFollowsIsToldOnceASecondWhatNoLineTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, to, rests := journal.NewRing(1<<20), &receiver{}, 0
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			answerNews(to, httptest.NewRequestWithContext(ctx, "GET", "/drops?follow=1", nil), kept, func(out *lines, _ bool) {
				rests++
				out.write(News{Unsampled: &journal.Unsampled{Packets: uint64(rests)}})
			})
			close(ended)
		}()
		const seconds, each = 5, 20
		for range seconds * each {
			time.Sleep(time.Second / each)
			kept.Add([]byte("{}"))
			synctest.Wait()
		}
		end()
		<-ended
		if lines := strings.Count(to.text.String(), `{"line":{}}`); lines != seconds*each || rests != 1+seconds {
			t.Errorf("%d lines and %d times the rest in %d seconds of %d lines each", lines, rests, seconds, each)
		}
	})
}

func TestAListThatWasCutOffIsNoWholeOne(t *testing.T) {
	line := `{"forgotten":1}` + "\n"
	for name, row := range map[string]struct {
		write  string
		cut    bool
		follow bool
		failed bool
	}{
		"whole": {write: line}, "empty": {}, "cut between lines": {write: line, cut: true, failed: true}, "cut in a line": {write: line + line[:4], cut: true, failed: true},
		"half a line": {write: line[:4], failed: true}, "no list": {write: "]", failed: true}, "followed": {write: line, follow: true, failed: true},
	} {
		l, path := listening(t)
		server := &http.Server{ReadHeaderTimeout: toAsk, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(row.write))
			if _ = http.NewResponseController(w).Flush(); row.cut {
				panic(http.ErrAbortHandler) // closes the connection
			}
		})}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		err := askAgent(t.Context(), path, "/drops", toAsk, func(d *json.Decoder) error {
			return eachNews(d, row.follow, func(News) error { return nil })
		})
		if (err != nil) != row.failed || errors.Is(err, ErrAgentEnded) != row.follow {
			t.Errorf("%s: %v", name, err)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}
}

// The socket is there for a moment before it has its mode.
func TestOnlyUsersThatMayAskAreAnswered(t *testing.T) {
	me := uint32(os.Geteuid())
	for _, row := range []struct {
		user     uint32
		answered bool
	}{{me, true}, {me + 1, false}} {
		l, path := listening(t)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("7")) }), ReadHeaderTimeout: toAsk}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(from{l, path, []uint32{row.user}}) }()
		var got int
		err := askAgent(t.Context(), path, "/names", toAsk, func(d *json.Decoder) error { return d.Decode(&got) })
		if answered := err == nil && got == 7; answered != row.answered {
			t.Errorf("user %d of %d: %v, %d", row.user, me, err, got)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-ended
	}
}
