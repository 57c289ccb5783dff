// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"time"
)

// Change is something that was published, and why, or that became of the agent. What does not apply is left out, but for the Service,
// its port and the reason, which are "" then.
type Change struct {
	Node     string    `json:"node"`
	Time     time.Time `json:"time"`
	Service  string    `json:"service"` // "namespace/name"; "" where it is of no single one
	Port     string    `json:"port"`    // the port's name, which may be empty
	Protocol string    `json:"protocol,omitempty"`
	What     string    `json:"what"`               // "backend-removed"
	Backend  string    `json:"backend,omitempty"`  // address and port
	Frontend string    `json:"frontend,omitempty"` // address and port
	From     string    `json:"from,omitempty"`     // what it was
	To       string    `json:"to,omitempty"`       // what it is
	Because  string    `json:"because"`            // "EndpointSlice prod/web-abc: not ready"
	Services []string  `json:"services,omitempty"` // of what is of no single one: those that it concerns
}

// Line is the change as encoding/json writes it, in one line. Ten thousand new Services are more than a hundred thousand of these.
func (c *Change) Line() []byte {
	line := make([]byte, 0, 320)
	line = appendText(line, `{"node":`, c.Node)
	line = append(line, `,"time":"`...)
	line = append(c.Time.AppendFormat(line, time.RFC3339Nano), '"')
	line = appendText(line, `,"service":`, c.Service)
	line = appendText(line, `,"port":`, c.Port)
	line = appendGiven(line, `,"protocol":`, c.Protocol)
	line = appendText(line, `,"what":`, c.What)
	line = appendGiven(line, `,"backend":`, c.Backend)
	line = appendGiven(line, `,"frontend":`, c.Frontend)
	line = appendGiven(line, `,"from":`, c.From)
	line = appendGiven(line, `,"to":`, c.To)
	line = appendText(line, `,"because":`, c.Because)
	for i, service := range c.Services {
		before := ","
		if i == 0 {
			before = `,"services":[`
		}
		line = appendText(line, before, service)
	}
	if len(c.Services) > 0 {
		line = append(line, ']')
	}
	return append(line, '}')
}

// appendGiven leaves out what is "".
func appendGiven(line []byte, name, text string) []byte {
	if text == "" {
		return line
	}
	return appendText(line, name, text)
}

func appendText(line []byte, name, text string) []byte {
	line = append(line, name...)
	if !plain(text) {
		quoted, _ := json.Marshal(text) // a text is no error
		return append(line, quoted...)
	}
	line = append(line, '"')
	line = append(line, text...)
	return append(line, '"')
}

// plain tells whether JSON has a text as it is. What encoding/json escapes for HTML is not.
func plain(text string) bool {
	for i := range len(text) {
		switch b := text[i]; {
		case b < ' ', b > '~', b == '"', b == '\\', b == '<', b == '>', b == '&':
			return false
		}
	}
	return true
}
