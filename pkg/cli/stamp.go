// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"
)

// stamp says whose rows are and when they were read, so that outputs of several nodes and times add up. Its zero value says nothing.
type stamp struct {
	node string // ""; no agent has said of which node the tables are
	at   time.Time
}

// stamp is that of rows that are read now.
func (o *tableOwner) stamp() stamp { return stamp{o.status.Node.Name, time.Now()} }

// stamped is a row in JSON: onNode and time, which kubectl nearlb and other commands have, come before its own fields. A row's "node" is its backend's.
type stamped[R any] struct {
	stamp stamp
	row   *R
}

// stampAll joins rows with the stamp.
func stampAll[R any](s stamp, rows []R) []stamped[R] {
	all := make([]stamped[R], len(rows))
	for i := range rows {
		all[i] = stamped[R]{s, &rows[i]}
	}
	return all
}

// MarshalJSON writes one object.
func (s stamped[R]) MarshalJSON() ([]byte, error) {
	own, err := compactJSON(s.row)
	if err != nil || s.stamp.at.IsZero() {
		return own, err
	}
	if len(own) < 2 || own[0] != '{' {
		return nil, fmt.Errorf("a row is no JSON object: %s", own)
	}
	head, err := compactJSON(struct {
		Node string    `json:"onNode,omitempty"`
		Time time.Time `json:"time"`
	}{s.stamp.node, s.stamp.at})
	if err != nil {
		return nil, err
	}
	if rest := own[1:]; rest[0] != '}' {
		return append(append(head[:len(head)-1], ','), rest...), nil
	}
	return head, nil
}

// compactJSON writes a value on one line, without HTML escapes and without the end of the line.
func compactJSON(value any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSpace(text.Bytes()), err
}
