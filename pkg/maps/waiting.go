// SPDX-License-Identifier: Apache-2.0

package maps

// Waiting tells whether something waits to be freed by Reclaim, to be published or to be compared by it.
func (t *Tables) Waiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.searching != nil || len(t.records)+len(t.runs)+len(t.gone)+len(t.idle)+len(t.leaving)+len(t.names.unused)+len(t.stale)+len(t.moved)+
		len(t.sources.unused)+len(t.behind)+len(t.unverified) > 0
}
