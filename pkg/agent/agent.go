// SPDX-License-Identifier: Apache-2.0

// Package agent is the daemon of a node: it follows objects, decides, publishes, keeps programs attached, and says how it
// goes (status file, health, metrics).
package agent

import "context"

// Run is `nearlb agent`: it returns nil when ctx ends, and leaves traffic flowing.
func Run(ctx context.Context, o Options) error {
	if err := o.Check(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
