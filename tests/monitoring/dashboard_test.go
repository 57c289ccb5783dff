// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
)

type dashboard struct {
	UID        string
	Templating struct {
		List []struct {
			Name, Type string
			Query      any
		}
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type, Title string
	Description string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, RefID string }
	FieldConfig struct{ Defaults struct{ Unit string } }
}

// Every panel has a unit, asks for metrics that there are, and shows something on a bad day.
func testDashboard(t *testing.T, s seen) {
	var d dashboard
	if err := json.Unmarshal(read(t, directory+"dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	h := historyOf(30*time.Minute, s.bad...)
	variables := checkVariables(t, d, h)
	ids, queries := map[int]bool{}, 0
	for i, p := range d.Panels {
		if ids[p.ID] || p.Title == "" {
			t.Errorf("panel %q has number %d, which another one has, or no title", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, o := range d.Panels[:i] {
			if p.overlaps(o) {
				t.Errorf("panels %q and %q overlap", p.Title, o.Title)
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no unit or asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			queries++
			expression := variables.Replace(target.Expr)
			checkNames(t, expression, h)
			if len(h.query(t, expression, 0)) == 0 {
				t.Errorf("panel %q shows nothing: %s", p.Title, expression)
			}
		}
	}
	t.Logf("%d panels, %d expressions", len(d.Panels), queries)
}

func (p panel) overlaps(o panel) bool {
	a, b := p.GridPos, o.GridPos
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

var labelValues = regexp.MustCompile(`^label_values\((\w+)(\{.*\})?, (\w+)\)$`)

// checkVariables wants each to offer something, and gives them the value that stands for all of it.
func checkVariables(t *testing.T, d dashboard, h *history) *strings.Replacer {
	t.Helper()
	replace := []string{"$__rate_interval", "5m"}
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		replace = append(replace, "$"+v.Name, ".*")
		query, _ := v.Query.(map[string]any)
		text, _ := query["query"].(string)
		part := labelValues.FindStringSubmatch(text)
		if part == nil {
			t.Errorf("variable %s asks %q", v.Name, text)
			continue
		}
		offers := map[string]bool{}
		for _, s := range h.series {
			if s.labels.Get(model.MetricNameLabel) == part[1] {
				offers[s.labels.Get(part[3])] = true
			}
		}
		if delete(offers, ""); len(offers) == 0 {
			t.Errorf("variable %s offers nothing", v.Name)
		}
	}
	return strings.NewReplacer(replace...)
}
