// SPDX-License-Identifier: Apache-2.0

// Package decide is the pure model: what a node does for one Service, and why. No clock, no map, no log.
package decide

import "github.com/nearlb/nearlb/pkg/lb"

// Decide says what the node does for the Service.
func Decide(in lb.Input, node lb.Node) lb.Decision {
	return lb.Decision{Service: in.Service.Name, Problems: in.Problems}
}
