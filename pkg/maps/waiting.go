// SPDX-License-Identifier: Apache-2.0

package maps

// Waiting tells whether something waits to be freed by Reclaim, or to be published by it: as of the last Reclaim and what changed
// since.
func (t *Tables) Waiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.unsettled || len(t.records)+len(t.runs)+len(t.gone)+len(t.stale)+len(t.sources.unused)+len(t.behind) > 0
}
