// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/table"
)

// saySlow is after how long without an answer it is said what is waited for.
const saySlow = 2 * time.Second

var errNoAnswer = errors.New("the agent does not answer")

// tableOwner is the agent whose tables a command prints, perhaps again and again. It is known after look.
type tableOwner struct {
	live    *agentFlags
	notes   notes
	status  agent.Status
	unknown error     // why there is no status: the agent may be elsewhere
	silent  time.Time // what it had written last when a question failed
	failed  error     // how it did
}

// look asks anew who that is, and says where it follows no changes, and since when.
func (o *tableOwner) look(page io.Writer, width int) {
	o.status, o.unknown = agent.ReadStatus(o.live.lockDir, o.live.pins.pinPath)
	if o.unknown != nil || works(o.status) {
		o.notes.forget("owner")
		return
	}
	o.notes.say(page, width, "owner", stateOf(o.status), "the agent is "+table.OneLine(agentText(o.status, time.Now())))
}

// stateOf is what the note about an agent that does not work depends on, but for the time that goes by.
func stateOf(a agent.Status) string {
	switch {
	case a.State == agent.Stopped:
		return "stopped"
	case a.Running:
		return "stale"
	}
	return "gone"
}

// ask asks the agent. One that does not run is not asked, nor one that hangs. After a question that failed it is not asked before it has
// written its status again: that question's error holds so long.
func (o *tableOwner) ask(question func() error) error {
	switch {
	case o.unknown != nil:
	case !o.status.Running:
		return agent.ErrNotAsked
	case o.status.Stale:
		return errNoAnswer
	case o.failed != nil && o.status.Written.Equal(o.silent):
		return o.failed
	}
	patience := time.AfterFunc(saySlow, o.notes.waiting)
	err := question()
	patience.Stop()
	o.failed, o.silent = err, o.status.Written
	return err
}

// unanswered says that a question failed, and what is not known therefore. That nobody follows changes was said.
func (o *tableOwner) unanswered(page io.Writer, width int, what string, err error) {
	switch {
	case err == nil:
		o.notes.forget("question")
	case !errors.Is(err, errNoAnswer) && !errors.Is(err, agent.ErrNotAsked):
		o.notes.say(page, width, "question", err.Error(), what+table.OneLine(err.Error()))
	}
}

// notes are what a command says beside its rows: on standard error, once for as long as it is so; in each page where pages take each other's
// place on a terminal, and with them what standard error had.
type notes struct {
	errs  io.Writer
	paged bool
	said  map[string]string // by subject, which one
}

// notesOf are those of a command whose rows have this format.
func notesOf(errs io.Writer, again *watchFlags, format string) notes {
	return notes{errs, again.on && (format == command.FormatTable || format == command.FormatWide), map[string]string{}}
}

// say says which of the notes on a subject holds.
func (n *notes) say(page io.Writer, width int, subject, which, text string) {
	if n.paged && width > 0 {
		table.WriteFolded(page, width, "nearlb: ", text)
	} else if n.said[subject] != which {
		command.SayAside(n.errs, text)
	}
	n.said[subject] = which
}

// waiting says on standard error that the agent is slow, while who asked it waits.
func (n *notes) waiting() {
	command.SayAside(n.errs, "waiting for the agent's answer, half a minute at the most")
}

// forget has a note on a subject said again when it comes back.
func (n *notes) forget(subject string) { delete(n.said, subject) }
