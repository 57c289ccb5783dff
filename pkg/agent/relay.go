// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// relay passes the news of the source on to the loop that is at work: watch.Events. Before there is one nobody wants them: the first
// one looks at everything.
type relay struct {
	mu     sync.Mutex
	to     watch.Events // nil: no loop yet
	synced bool
}

// turn passes everything to another loop from now on. If the first list is over, that loop gets Synced and looks at everything, so that it
// misses nothing.
func (r *relay) turn(to watch.Events) {
	r.mu.Lock()
	r.to = to
	synced := r.synced
	r.mu.Unlock()
	if synced {
		to.Synced()
	}
}

func (r *relay) now() watch.Events {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to
}

// ServiceChanged is watch.Events'.
func (r *relay) ServiceChanged(name lb.ServiceName) {
	if to := r.now(); to != nil {
		to.ServiceChanged(name)
	}
}

// NodeChanged is watch.Events'.
func (r *relay) NodeChanged() {
	if to := r.now(); to != nil {
		to.NodeChanged()
	}
}

// Synced is watch.Events'.
func (r *relay) Synced() {
	r.mu.Lock()
	r.synced = true
	to := r.to
	r.mu.Unlock()
	if to != nil {
		to.Synced()
	}
}
