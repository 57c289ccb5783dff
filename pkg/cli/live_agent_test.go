// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
)

// Tables that a dead agent left are told to be so, on standard error: what reads the rows is not disturbed.
func TestTheTablesOfADeadAgentSaySinceWhenTheyAre(t *testing.T) {
	for state, want := range map[agent.State]string{agent.Serving: "", agent.Stopped: "nearlb: the agent is stopped 5m ago"} {
		live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
		leaveStatus(t, &live, state, map[agent.State]time.Duration{agent.Stopped: 5 * time.Minute}[state])
		var said strings.Builder
		(&tableOwner{live: &live, notes: notesOf(&said, &watchFlags{}, "")}).look(&said, 0)
		if !strings.HasPrefix(said.String(), want) || (want == "") != (said.String() == "") {
			t.Errorf("%s: %q", state, said.String())
		}
	}
	var said strings.Builder
	nobody := tableOwner{live: &agentFlags{pinFlags{t.TempDir()}, t.TempDir()}, notes: notesOf(&said, &watchFlags{}, "")}
	if nobody.look(&said, 0); said.Len() > 0 {
		t.Errorf("without a status: %q", said.String())
	}
}

// leaveStatus writes the status of an agent in this process's place, as if it had done so a time ago.
func leaveStatus(t *testing.T, live *agentFlags, state agent.State, ago time.Duration) {
	t.Helper()
	namespace, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		t.Fatal(err)
	}
	path, at := agent.StatusPath(live.lockDir, live.pins.pinPath), time.Now().Add(-ago)
	text, err := json.Marshal(map[string]any{"pid": os.Getpid(), "pidNamespace": namespace, "state": state, "version": "v9"})
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err == nil {
		err = os.Chtimes(path, at, at)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Each question that a hanging agent leaves without an answer takes half a minute: it gets one, and the next after a sign of life.
func TestAnAgentThatDoesNotAnswerIsNotAskedWithEachPrint(t *testing.T) {
	live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
	var said strings.Builder
	owner := tableOwner{live: &live, notes: notesOf(&said, &watchFlags{on: true}, command.FormatWide)}
	asked, fails := 0, errors.New("no answer within a long time")
	print := func() error {
		owner.look(&said, 0)
		err := owner.ask(func() error { asked++; return fails })
		owner.unanswered(&said, 0, "", err)
		return err
	}
	for _, step := range []struct {
		what  string
		state agent.State
		ago   time.Duration
		fails error
		asked int
		want  error
	}{
		{"it hangs", agent.Serving, time.Second, fails, 1, fails},
		{"it hangs", agent.Serving, time.Second, fails, 1, fails},
		{"it is silent for long", agent.Serving, time.Minute, fails, 1, errNoAnswer},
		{"it works again", agent.Serving, 0, nil, 2, nil},
		{"it works", agent.Serving, 0, nil, 3, nil},
		{"it has stopped", agent.Stopped, 0, nil, 3, agent.ErrNotAsked},
	} {
		if step.what != "it hangs" || asked == 0 {
			leaveStatus(t, &live, step.state, step.ago)
		}
		fails = step.fails
		if err := print(); err != step.want || asked != step.asked {
			t.Errorf("%s: asked %d times, %v; want %d, %v", step.what, asked, err, step.asked, step.want)
		}
	}
	if text := said.String(); strings.Count(text, "no answer within") != 1 || strings.Count(text, "the agent is not responding")+strings.Count(text, "the agent is stopped") < 1 {
		t.Errorf("it says:\n%s", text)
	}
}

// On standard error a note is there once for as long as it holds. Pages on a terminal take each other's place, and with them what was said
// before the first one.
func TestANoteIsInEachPageOfATerminalAndElsewhereOnce(t *testing.T) {
	for _, paged := range []bool{true, false} {
		width := 0
		if paged {
			width = 40
		}
		var errs, page strings.Builder
		n := notesOf(&errs, &watchFlags{on: true}, command.FormatTable)
		for _, which := range []string{"a", "a", "b", "b"} {
			n.say(&page, width, "owner", which, "the agent is "+which+", and that is a long line of text")
		}
		n.forget("owner")
		n.say(&page, width, "owner", "b", "back")
		counts := func(text string) [3]int {
			return [3]int{strings.Count(text, "nearlb: the agent is a"), strings.Count(text, "nearlb: the agent is b"), strings.Count(text, "nearlb: back")}
		}
		if paged && (errs.Len() > 0 || counts(page.String()) != [3]int{2, 2, 1}) || !paged && (page.Len() > 0 || counts(errs.String()) != [3]int{1, 1, 1}) {
			t.Errorf("on a terminal %v: pages\n%s\nstandard error\n%s", paged, page.String(), errs.String())
		}
		for line := range strings.Lines(page.String()) {
			if len(line) > 41 {
				t.Errorf("wider than the terminal: %q", line)
			}
		}
	}
}

// Half a minute without a word is long at night.
func TestWhoWaitsForASlowAgentIsToldSo(t *testing.T) {
	live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
	leaveStatus(t, &live, agent.Serving, 0)
	for slow, want := range map[time.Duration]int{saySlow - time.Millisecond: 0, saySlow + time.Millisecond: 1} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			owner := tableOwner{live: &live, notes: notesOf(&said, &watchFlags{}, command.FormatWide), status: agent.Status{Running: true, Written: time.Now()}}
			err := owner.ask(func() error { time.Sleep(slow); synctest.Wait(); return nil })
			if n := strings.Count(said.String(), "waiting for the agent's answer"); err != nil || n != want {
				t.Errorf("answered after %v, %v: said %d times, want %d", slow, err, n, want)
			}
		})
	}
}

// A page takes the place of the one before it, and of what that said: why a question failed is in each, also where it is not asked again.
func TestWhyAQuestionFailedIsInEachPage(t *testing.T) {
	live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
	leaveStatus(t, &live, agent.Serving, time.Second)
	owner := tableOwner{live: &live, notes: notesOf(&strings.Builder{}, &watchFlags{on: true}, command.FormatWide)}
	for round := range 3 {
		var page strings.Builder
		owner.look(&page, 80)
		err := owner.ask(func() error { return errors.New("the agent refuses: too many ask") })
		if owner.unanswered(&page, 80, "", err); !strings.Contains(page.String(), "too many ask") {
			t.Errorf("page %d: %q", round, page.String())
		}
	}
}

// Nobody counts bytes where no agent follows changes: that is an error for who asks first, and a note for who has counts already.
func TestBytesThatNobodyCountsAreAnErrorAtFirst(t *testing.T) {
	for state, ago := range map[agent.State]time.Duration{agent.Stopped: 0, agent.Serving: time.Minute} { // the second one hangs
		live := agentFlags{pinFlags{filepath.Join(t.TempDir(), "pins")}, t.TempDir()}
		leaveStatus(t, &live, state, ago)
		var said strings.Builder
		counting := flowCounting{owner: tableOwner{live: &live, notes: notesOf(&said, &watchFlags{on: true}, command.FormatJSON)}}
		if err := counting.begin(t.Context(), &said, 0, true); err == nil || !strings.Contains(err.Error(), "--bytes: the agent has bytes counted, and") {
			t.Errorf("%s: %v", state, err)
		}
		counting.begun = true
		if err := counting.begin(t.Context(), &said, 0, true); err != nil || !strings.Contains(said.String(), "the agent is ") {
			t.Errorf("%s, of counts that are there: %v, %q", state, err, said.String())
		}
	}
}

func TestFlowsWithoutACountAreToldOf(t *testing.T) {
	var page strings.Builder
	counting := flowCounting{owner: tableOwner{notes: notesOf(&strings.Builder{}, &watchFlags{on: true}, command.FormatTable)}}
	counting.sayFull(&page, 80, agent.FlowCount{})
	if page.Len() > 0 {
		t.Errorf("all are counted: %q", page.String())
	}
	counting.sayFull(&page, 80, agent.FlowCount{Full: "table flow_bytes is full"})
	if got := page.String(); got != "nearlb: table flow_bytes is full; their SENT and RECEIVED are -\n" {
		t.Errorf("%q", got)
	}
}
