// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"time"
)

// answers are those of /healthz and /livez, which are kube-proxy's, and of /readyz. All are 503 once a change has waited for a
// minute. An agent that starts is healthy, but not ready before programs serve what was listed at first. A Service that fails again
// and again does not make the node ill: status and metrics tell of it.
type answers struct {
	progress *progress
	eligible func() bool
	serving  func() bool // everything listed at first was published, and programs serve it
	answered func(endpoint string, code int)
	now      func() time.Time
}

// healthBody has the names of kube-proxy's answer. Healthy leaves out whether the node is eligible, as there.
type healthBody struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyHealth `json:"status,omitempty"` // by family; absent before the first publication
}

// familyHealth is the part of one family. Both are published together.
type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// handler serves /healthz, which load balancers ask whether to send traffic here, and two that the kubelet asks: /livez, whether to
// restart the agent, and /readyz, whether a rollout may go on. Whether the node is eligible does not count for /livez.
func (a answers) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := a.eligible()
		a.answer(w, "healthz", eligible, &eligible)
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := a.eligible()
		a.answer(w, "readyz", eligible && a.serving(), &eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { a.answer(w, "livez", true, nil) })
	return mux
}

func (a answers) answer(w http.ResponseWriter, endpoint string, eligible bool, shown *bool) {
	body := a.body()
	body.NodeEligible = shown
	code := http.StatusServiceUnavailable
	if body.Healthy && eligible {
		code = http.StatusOK
		body.LastUpdated = body.CurrentTime // nothing waited for too long: what is published is of now
	}
	a.answered(endpoint, code)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client went away
}

func (a answers) body() healthBody {
	now := a.now()
	body := healthBody{LastUpdated: a.progress.diary.lastSynced(), CurrentTime: now, Healthy: !a.progress.stale(now)}
	if !body.LastUpdated.IsZero() {
		family := familyHealth{body.LastUpdated, body.Healthy}
		body.Status = map[string]familyHealth{"IPv4": family, "IPv6": family}
	}
	return body
}
