// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/nearlb/nearlb/pkg/journal"
)

// News is one thing that an agent tells of what it keeps: one of the three.
type News struct {
	Line      *json.RawMessage   `json:"line,omitempty"`      // as it is kept
	Forgotten uint64             `json:"forgotten,omitempty"` // lines that are missing before the next one
	Unsampled *journal.Unsampled `json:"unsampled,omitempty"` // of drops
}

// restEvery is how often who follows is told of what no line tells.
const restEvery = time.Second

// answerNews writes what is kept, and with ?follow=1 what comes until the client goes away. rest, if it is not nil, writes what no line tells:
// after what is kept, and then each restEvery, however often lines come.
func answerNews(w http.ResponseWriter, ask *http.Request, kept *journal.Ring, rest func(out *lines, follow bool)) {
	out := newLines(w)
	follow := ask.URL.Query().Get("follow") != ""
	var tick <-chan time.Time
	if rest != nil {
		ticker := time.NewTicker(restEvery)
		defer ticker.Stop()
		tick = ticker.C
	}
	due := rest != nil
	for number := uint64(0); ; {
		lines, next, forgotten, news := kept.From(number)
		if number > 0 && forgotten > 0 {
			out.write(News{Forgotten: forgotten})
		}
		for _, line := range lines {
			out.write(News{Line: (*json.RawMessage)(&line)})
		}
		if number = next; due {
			rest(out, follow)
		}
		due = false
		if out.flush() != nil || !follow {
			return
		}
		select {
		case <-ask.Context().Done():
			return
		case <-news:
		case <-tick:
			due = true
		}
	}
}

// lines writes values of JSON to a client that has askTime for each piece, however long nothing was to be written.
type lines struct {
	*json.Encoder
	control *http.ResponseController
	failed  error
}

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/jsonl")
	control := http.NewResponseController(w)
	return &lines{Encoder: json.NewEncoder(lasting{w, control}), control: control}
}

func (l *lines) write(value any) {
	if l.failed == nil {
		l.failed = l.Encode(value)
	}
}

// flush sends what was written; an error is that the client went away.
func (l *lines) flush() error {
	if l.failed == nil {
		l.failed = l.control.SetWriteDeadline(time.Now().Add(askTime))
	}
	if l.failed == nil {
		l.failed = l.control.Flush()
	}
	return l.failed
}

// readNews has a running agent tell what it keeps, and with follow what comes until ctx ends.
func readNews(ctx context.Context, lockDir, pinPath, request string, follow bool, tell func(News) error) error {
	within := askTime
	if follow {
		request, within = request+"?follow=1", 0
	}
	return askAgent(ctx, Socket(lockDir, pinPath), request, within, func(d *json.Decoder) error { return eachNews(d, follow, tell) })
}

// ErrAgentEnded: the agent that was followed is gone.
var ErrAgentEnded = errors.New("the agent has ended")

// eachNews reads values to their end, which an agent that is followed does not come to. An answer that was cut off has none: that is an
// error.
func eachNews(d *json.Decoder, follow bool, tell func(News) error) error {
	for d.More() {
		var next News
		if err := d.Decode(&next); err != nil {
			return err
		}
		if err := tell(next); err != nil {
			return err
		}
	}
	_, err := d.Token()
	switch {
	case follow:
		return fmt.Errorf("%w: %w", ErrAgentEnded, err)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}
