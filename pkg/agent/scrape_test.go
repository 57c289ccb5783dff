// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/nearlb/nearlb/pkg/metrics"
)

// sample is the value of a metric as Prometheus would read it; series is its name with labels.
func sample(t testing.TB, m *metrics.Metrics, series string) float64 {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if text, found := strings.CutPrefix(line, series+" "); found {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no metric %s in:\n%s", series, answer.Body)
	return 0
}
