// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
)

// stamp says whose rows are and when they were read, so that outputs of several nodes and times add up: the first fields of each row's object, as in
// {"onNode":"n1","time":"...". kubectl nearlb has that name for the node, as a row's own "node" is its backend's. nil: nothing is said.
type stamp []byte

// newStamp is that of rows that are read at a time. node "": no agent has said of which node the tables are.
func newStamp(node string, at time.Time) stamp {
	text, err := json.Marshal(struct {
		Node string    `json:"onNode,omitempty"`
		Time time.Time `json:"time"`
	}{node, at})
	if err != nil {
		return nil // a year that has more than four digits
	}
	return text[:len(text)-1]
}

// stampNow is that of rows that are read now, of the node of this agent.
func stampNow(a agent.Status) stamp { return newStamp(a.Node.Name, time.Now()) }

// stamped is a row in JSON, behind the stamp.
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
	var out bytes.Buffer
	if err := command.WriteJSONLine(&out, s.row); err != nil || s.stamp == nil {
		return out.Bytes(), err
	}
	own := bytes.TrimSpace(out.Bytes())
	if len(own) < 2 || own[0] != '{' {
		return nil, fmt.Errorf("a row is no JSON object: %s", own)
	}
	between := ","
	if own[1] == '}' {
		between = ""
	}
	return bytes.Join([][]byte{s.stamp, own[1:]}, []byte(between)), nil
}
