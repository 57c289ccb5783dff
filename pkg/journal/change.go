// SPDX-License-Identifier: Apache-2.0

package journal

import "time"

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
}
