// SPDX-License-Identifier: Apache-2.0

package maps

import "github.com/nearlb/nearlb/pkg/lb"

// Serving are the Services of Published, true for those with an active backend.
func (t *Tables) Serving() map[lb.ServiceName]bool {
	names := t.Published()
	t.mu.Lock()
	defer t.mu.Unlock()
	serving := make(map[lb.ServiceName]bool, len(names))
	for _, name := range names {
		serving[name] = t.services[name].active()
	}
	return serving
}

// active says whether the Service has a backend that new connections may go to.
func (s *service) active() bool {
	for _, p := range s.ports {
		for _, b := range p.backends {
			if b.value.State == stateActive {
				return true
			}
		}
	}
	return false
}
