// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/nearlb/nearlb/pkg/watch"
)

// health answers /healthz and /livez as kube-proxy does: 503 when changes wait although nothing was tried for a minute.
// An agent that starts is healthy. A Service that fails again and again is not the node's ill health: it is in the
// status and in the metrics.
type health struct {
	progress *progress
	eligible func() bool
	now      func() time.Time
}

// healthBody has the names of kube-proxy's answer.
type healthBody struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Healthy      bool      `json:"healthy"`
}

// handler serves /healthz, which load balancers ask whether to send traffic here, and /livez, which the kubelet asks
// whether to restart the agent. Whether the node is eligible counts for the first only.
func (h health) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := h.eligible()
		h.answer(w, eligible, &eligible)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, true, nil) })
	return mux
}

func (h health) answer(w http.ResponseWriter, eligible bool, shown *bool) {
	now := h.now()
	body := healthBody{
		LastUpdated:  h.progress.updated(now),
		CurrentTime:  now,
		NodeEligible: shown,
		Healthy:      eligible && !h.progress.stale(now),
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !body.Healthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // the client went away
}

// updated is when the tables were last what they should be: now, when nothing waits.
func (p *progress) updated(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.dirty) == 0 && p.begun {
		return now
	}
	return p.lastSync
}

// nodeKnown is whether the own Node may get traffic. A source that knows more of the Node than lb.Node says tells itself.
func nodeKnown(source watch.Source, listed <-chan struct{}) bool {
	if s, ok := source.(interface{ NodeEligible() bool }); ok {
		return s.NodeEligible()
	}
	return !closed(listed) || len(source.Node().Addresses) > 0
}
