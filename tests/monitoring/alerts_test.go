// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"sigs.k8s.io/yaml"
)

// scenario is a history in which an alert fires.
type scenario struct {
	history *history
	labels  []string // pairs that a firing alert has
}

// scenarios are by alert. What can be made to happen in a lab did happen there; of the rest the numbers are made up, as promtool's
// tests do.
func scenarios(s seen) map[string]scenario {
	bad := func(length time.Duration) *history { return historyOf(length, s.bad...) }
	good := historyOf(2*time.Hour, s.good...)
	constant := func(value float64) func(time.Duration, float64) float64 {
		return func(time.Duration, float64) float64 { return value }
	}
	// rising grows by so much a second during the last half hour
	rising := func(rate float64) func(time.Duration, float64) float64 {
		return func(before time.Duration, value float64) float64 {
			return value + rate*max(0, (30*time.Minute-before).Seconds())
		}
	}
	old := func(seconds float64) func(time.Duration, float64) float64 {
		return func(_ time.Duration, value float64) float64 { return value - seconds }
	}
	slow := good
	for _, le := range good.values("nearlb_network_programming_duration_seconds_bucket", "le") {
		if limit, err := strconv.ParseFloat(le, 64); err == nil && limit >= 60 {
			slow = slow.with("nearlb_network_programming_duration_seconds_bucket", rising(1), "le", le, "node", "n1")
		}
	}
	return map[string]scenario{
		"NearlbAgentDown":            {historyOf(10*time.Minute, s.down[0], s.down[0]), []string{"node", "n3"}},
		"NearlbPublicationsFail":     {bad(20 * time.Minute), []string{"node", "n3"}},
		"NearlbTableNearlyFull":      {bad(20 * time.Minute), []string{"node", "n3", "table", "backends"}},
		"NearlbDrift":                {bad(20 * time.Minute), []string{"node", "n2"}},
		"NearlbSNATPortsUsedUp":      {bad(20 * time.Minute), []string{"node", "n1"}},
		"NearlbProgramsDetached":     {bad(20 * time.Minute), []string{"node", "n3"}},
		"NearlbNoLocalEndpoints":     {bad(time.Hour), []string{"node", "n1"}},
		"NearlbHealthCheckPortsFail": {bad(20 * time.Minute), nil},
		"NearlbConnectionsFail":      {bad(21 * time.Minute), []string{"service", "refusing"}},
		"NearlbObjectProblems":       {bad(time.Hour), nil},
		"NearlbNameServersSilent":    {bad(20 * time.Minute), []string{"node", "n1"}},
		"NearlbNameServersFail":      {bad(30 * time.Minute), []string{"node", "n1"}},

		"NearlbNoAgents":            {good.without("up"), nil},
		"NearlbPacketsLost":         {good.with("nearlb_packets_total", rising(1), "verdict", "drop", "reason", "no_route", "node", "n1", "hook", "from_net"), []string{"reason", "no_route"}},
		"NearlbDropsRise":           {good.with("nearlb_packets_total", rising(20), "verdict", "drop", "reason", "unallocated", "node", "n1", "hook", "from_pod"), []string{"reason", "unallocated"}},
		"NearlbSyncStale":           {good.with("nearlb_services_dirty", constant(2), "node", "n2").with("nearlb_last_sync_timestamp_seconds", old(900), "node", "n2"), []string{"node", "n2"}},
		"NearlbAgentHangs":          {good.with("nearlb_last_look_timestamp_seconds", old(900), "node", "n2"), []string{"node", "n2"}},
		"NearlbSlowProgramming":     {slow, []string{"node", "n1"}},
		"NearlbBackendsDoNotAnswer": {good.with("nearlb_backends_ejected", constant(2), "node", "n1"), []string{"node", "n1"}},
		"NearlbNodesSilent":         {good.with("nearlb_nodes_silent", constant(1), "node", "n1"), []string{"node", "n1"}},
		"NearlbDeletionsHeld":       {good.with("nearlb_deletions_held", constant(7), "node", "n1", "kind", "Service"), []string{"node", "n1"}},
		"NearlbNamesNotAnswered":    {good.with("nearlb_dns_answering", constant(0), "node", "n1"), []string{"node", "n1"}},
		"NearlbAPIServerUnreadable": {good.with("nearlb_api_server_readable", constant(0), "node", "n1"), []string{"node", "n1"}},
	}
}

// harmless are by alert histories in which it does not fire, beside a good day.
func harmless(s seen) map[string][]*history {
	const forwarded = "nearlb_dns_forward_duration_seconds_count"
	asked := func(answered, failed, silent float64) *history {
		each := func(perSecond float64) func(time.Duration, float64) float64 {
			return func(before time.Duration, _ float64) float64 { return perSecond * (time.Hour - before).Seconds() }
		}
		h := historyOf(30*time.Minute, s.bad...).with(forwarded, each(answered), "result", "answered").with(forwarded, each(silent), "result", "silent")
		return h.and(forwarded, each(failed), "result", "failed", "node", "n1")
	}
	return map[string][]*history{"NearlbNameServersSilent": {
		asked(0.01, 0, 0.02), // two of three servers are dead, and the third one answers
		asked(0, 1, 0),       // all is kept, and one pod asks for a name that fails
		asked(0, 1, 2),       // both
		asked(0, 0, 0),       // nobody asks
	}}
}

// Each alert says what is to be known, fires when it should, and not on a good day.
func testAlerts(t *testing.T, s seen) {
	groups, errs := rulefmt.Parse(read(t, directory+"alerts.yaml"), false, model.UTF8Validation)
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 {
		return
	}
	quiet := harmless(s)
	all, good, day := scenarios(s), historyOf(2*time.Hour, s.good...), historyOf(30*time.Minute, s.bad...)
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			t.Run(rule.Alert, func(t *testing.T) {
				checkRule(t, rule)
				checkNames(t, rule.Expr, day)
				scene, known := all[rule.Alert]
				delete(all, rule.Alert)
				if !known {
					t.Fatal("there is no scenario for it")
				}
				if got := firing(t, scene.history, rule); !slices.ContainsFunc(got, scene.fits) {
					t.Errorf("it does not fire for %v: %v", scene.labels, got)
				}
				if got := firing(t, good, rule); len(got) > 0 {
					t.Errorf("it fires on a good day: %v", got)
				}
				for i, h := range quiet[rule.Alert] {
					if got := firing(t, h, rule); len(got) > 0 {
						t.Errorf("it fires in harmless history %d: %v", i, got)
					}
				}
			})
		}
	}
	for name := range all {
		t.Errorf("there is no alert %s", name)
	}
}

func checkRule(t *testing.T, rule rulefmt.Rule) {
	t.Helper()
	for _, name := range []string{"summary", "description", "runbook"} {
		if rule.Annotations[name] == "" {
			t.Errorf("it has no %s", name)
		}
	}
	if severity := rule.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
		t.Errorf("it has the severity %q", severity)
	}
}

func (s scenario) fits(l labels.Labels) bool {
	for i := 0; i < len(s.labels); i += 2 {
		if l.Get(s.labels[i]) != s.labels[i+1] {
			return false
		}
	}
	return true
}

// firing are the label sets that the expression had at each minute of the time that it is to last.
func firing(t *testing.T, h *history, rule rulefmt.Rule) (all []labels.Labels) {
	t.Helper()
	for before := time.Duration(rule.For); before >= 0; before -= time.Minute {
		var now []labels.Labels
		for _, found := range h.query(t, rule.Expr, before) {
			now = append(now, labels.NewBuilder(found.Metric).Del(model.MetricNameLabel).Labels())
		}
		if before < time.Duration(rule.For) {
			now = slices.DeleteFunc(now, func(l labels.Labels) bool {
				return !slices.ContainsFunc(all, func(o labels.Labels) bool { return labels.Equal(l, o) })
			})
		}
		all = now
	}
	return all
}

// The operator's object has the same rules.
func TestThePrometheusRuleHasTheSameAlerts(t *testing.T) {
	var plain struct{ Groups any }
	var wrapped struct {
		APIVersion, Kind string
		Spec             struct{ Groups any }
	}
	for file, into := range map[string]any{"alerts.yaml": &plain, "prometheusrule.yaml": &wrapped} {
		if err := yaml.Unmarshal(read(t, directory+file), into); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(plain.Groups, wrapped.Spec.Groups); diff != "" || wrapped.Kind != "PrometheusRule" || plain.Groups == nil {
		t.Errorf("run tests/monitoring/rule.sh (-alerts.yaml +prometheusrule.yaml):\n%s", diff)
	}
}
