// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// ask is the status code and the body of one of the health server's answers.
func ask(t *testing.T, h health, path string) (int, map[string]any) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	var body map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %q", path, err, answer.Body)
	}
	return answer.Code, body
}

func TestHealthIsFreshnessAndLivenessLeavesTheNodeOut(t *testing.T) {
	inBubble(t, func(b *bench) {
		eligible := true
		h := health{progress: b.progress, eligible: func() bool { return eligible }, now: time.Now}
		want := func(when string, healthz, livez int) {
			t.Helper()
			got, body := ask(t, h, "/healthz")
			if got != healthz || body["healthy"] != (healthz == http.StatusOK) || body["nodeEligible"] != eligible {
				t.Errorf("%s: /healthz says %d, %v; want %d", when, got, body, healthz)
			}
			if got, body := ask(t, h, "/livez"); got != livez || body["nodeEligible"] != nil {
				t.Errorf("%s: /livez says %d, %v; want %d", when, got, body, livez)
			}
		}
		b.ServiceChanged(b.source.set(1, 1))
		b.after(time.Hour)
		want("before anything was listed", http.StatusOK, http.StatusOK)
		b.tables.block = make(chan struct{})
		b.Synced()
		b.after(staleAfter + time.Second)
		want("while it hangs", http.StatusServiceUnavailable, http.StatusServiceUnavailable)
		close(b.tables.block)
		b.settle()
		want("when it went on", http.StatusOK, http.StatusOK)
		eligible = false
		want("on a node that may not get traffic", http.StatusServiceUnavailable, http.StatusOK)
	})
}

func TestTheNodeIsIneligibleWhenItsObjectIsUnknown(t *testing.T) {
	source := newScripted()
	listed := make(chan struct{})
	source.node.Addresses = nil
	if !nodeKnown(source, listed) {
		t.Error("ineligible before anything was listed")
	}
	close(listed)
	if nodeKnown(source, listed) {
		t.Error("eligible without a Node")
	}
}
