// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// rows are tables that a test wrote.
type fake struct {
	verdicts []maps.VerdictRow
	traffic  []maps.TrafficRow
	services []maps.ServiceTrafficRow
	failed   []maps.FailedRow // told at the next look, once
	err      error
}

func (r *fake) Verdicts() iter.Seq2[maps.VerdictRow, error] { return each(r.verdicts, nil) }
func (r *fake) Traffic() iter.Seq2[maps.TrafficRow, error]  { return each(r.traffic, r.err) }
func (r *fake) ServiceTraffic() iter.Seq2[maps.ServiceTrafficRow, error] {
	return each(r.services, nil)
}

func (r *fake) Failed(*maps.FailedOnce) iter.Seq[maps.FailedRow] {
	told := r.failed
	r.failed = nil
	return slices.Values(told)
}

func each[T any](list []T, err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range list {
			if !yield(v, nil) {
				return
			}
		}
		var none T
		if err != nil {
			yield(none, err)
		}
	}
}

func full(err error) *Metrics {
	m := New("v1")
	m.Programmed(30 * time.Millisecond)
	m.Published(time.Millisecond, maps.Stats{Frontends: 2, Slots: 101})
	m.Failed("table_full")
	m.Audited(time.Unix(1700000000, 0), []maps.Drift{{Table: "frontends"}})
	m.Synced(time.Unix(1700000001, 0))
	m.Follow(func() State {
		return State{Services: 3, Frontends: 4, Backends: map[string]int{"active": 5}, Dirty: 1, Failing: 2,
			Devices: map[string]int{"tcx": 6}, Detached: 1, Problems: 7, External: 3,
			Eligible: true, Checks: map[string]int{"answered": 2, "failed": 1}, WithoutLocal: map[string]int{Internal: 0, External: 3},
			Reasons: map[Why]int{{Internal, lb.ReasonSameZone, ""}: 4, {External, lb.ReasonAll, lb.NoteNoHints}: 1},
			Topology: []Answer{{lb.PortName{Service: lb.ServiceName{Namespace: "default", Name: "web"}, Port: "http", Protocol: lb.TCP}, true,
				Why{External, lb.ReasonAll, lb.NoteNoHints}}},
			Omitted: 5}
	})
	m.Answered("healthz", http.StatusServiceUnavailable)
	m.Read(reading(&fake{verdicts: []maps.VerdictRow{{Hook: "from_pod", Verdict: "drop", Reason: "unallocated", Packets: 8, Bytes: 800}}, err: err}))
	return m
}

func reading(tables *fake) Reading {
	return Reading{Tables: tables, Zone: func() string { return "a" }, Limits: Limits{Services: 2, Backends: 2},
		Fill: func() []maps.FillRow { return []maps.FillRow{{Table: "flows", Used: 9, Limit: 10}} }}
}

func scrape(t *testing.T, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Errorf("answered %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func TestEveryMetricIsThere(t *testing.T) {
	text := scrape(t, full(nil))
	for _, line := range []string{
		`nearlb_build_info{version="v1"} 1`,
		`nearlb_network_programming_duration_seconds_bucket{le="0.05"} 1`,
		`nearlb_publication_duration_seconds_count 1`,
		`nearlb_publication_errors_total{cause="table_full"} 1`,
		`nearlb_table_writes_total{table="slots"} 101`,
		`nearlb_drift_total{table="frontends"} 1`,
		`nearlb_audits_total 1`,
		`nearlb_last_audit_timestamp_seconds 1.7e+09`,
		`nearlb_last_sync_timestamp_seconds 1.700000001e+09`,
		`nearlb_services 3`, `nearlb_frontends 4`, `nearlb_backends{state="active"} 5`,
		`nearlb_services_dirty 1`, `nearlb_services_failing 2`, `nearlb_object_problems 7`, `nearlb_external_ip_problems 3`,
		`nearlb_programs_attached{method="tcx"} 6`, `nearlb_programs_detached 1`,
		`nearlb_packets_total{hook="from_pod",reason="unallocated",verdict="drop"} 8`,
		`nearlb_bytes_total{hook="from_pod",reason="unallocated",verdict="drop"} 800`,
		`nearlb_node_eligible 1`, `nearlb_health_answers_total{code="503",endpoint="healthz"} 1`,
		`nearlb_health_check_node_ports{state="answered"} 2`, `nearlb_health_check_node_ports{state="failed"} 1`,
		`nearlb_services_without_local_endpoints{traffic_policy="external"} 3`,
		`nearlb_services_without_local_endpoints{traffic_policy="internal"} 0`,
		`nearlb_service_ports{note="",reason="same-zone",side="internal"} 4`,
		`nearlb_service_ports{note="no-hints",reason="all",side="external"} 1`,
		`nearlb_service_topology_info{family="IPv4",namespace="default",note="no-hints",port="http",protocol="TCP",reason="all",service="web",side="external"} 1`,
		`nearlb_service_topology_omitted 5`,
		`nearlb_table_entries{table="flows"} 9`, `nearlb_table_limit{table="flows"} 10`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
}

func TestATableThatCannotBeReadLeavesTheOtherMetrics(t *testing.T) {
	if text := scrape(t, full(errors.New("no"))); !strings.Contains(text, "nearlb_services 3\n") {
		t.Error("the other metrics are gone")
	}
}

func TestNamesFollowTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(full(nil).registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestBucketsAreThoseOfTheSLIAndRise(t *testing.T) {
	buckets := ProgrammingBuckets()
	if !slices.IsSorted(buckets) || len(slices.Compact(slices.Clone(buckets))) != len(buckets) {
		t.Errorf("buckets do not rise: %v", buckets)
	}
	for _, want := range []float64{0.25, 0.5, 1, 59, 60, 115, 120, 300} {
		if !slices.Contains(buckets, want) {
			t.Errorf("no bucket %v", want)
		}
	}
}
