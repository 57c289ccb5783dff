// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// allowance bounds how often a Service is published: burst times at once, and from then on once in every. What is not used is
// saved up at the same rate. Its state per Service is one number (the generic cell rate algorithm, ITU-T I.371): the time at which
// all that was spent will be saved up again.
type allowance struct{ every time.Duration }

// burst is how many changes of a Service are published at once before further ones are gathered.
const burst = 10

// wait is how long to gather changes before the next publication.
func (a allowance) wait(pace, now time.Duration) time.Duration {
	return max(0, pace-(burst-1)*a.every-now)
}

// spend is the state after a publication.
func (a allowance) spend(pace, now time.Duration) time.Duration { return max(pace, now) + a.every }
