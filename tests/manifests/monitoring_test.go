// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What they say is tested by tests/monitoring.
func TestMonitoringRendersForTheOperatorAndGrafana(t *testing.T) {
	text, err := Kustomize("monitoring")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"kind: PodMonitor\n", "kind: PrometheusRule\n", "name: nearlb-dashboard\n", `grafana_dashboard: "1"`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q", strings.TrimSpace(want))
		}
	}
	dashboard, err := os.ReadFile(filepath.Join(Directory(), "monitoring", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	title := []byte(`"title": "Share of bytes that cross zones"`)
	if !bytes.Contains(dashboard, title) || !bytes.Contains(text, title) {
		t.Error("the dashboard is not in the ConfigMap")
	}
}

// The operator finds a port by number or by name among those that a pod declares, and the agent's declares none.
func TestTheMonitorFindsPodsThatDeclareNoPorts(t *testing.T) {
	text, err := Kustomize("monitoring")
	if err != nil {
		t.Fatal(err)
	}
	_, c := daemonSet(t, kustomized(t, "base"))
	monitor, _, _ := bytes.Cut(text[bytes.Index(text, []byte("kind: PodMonitor\n")):], []byte("\n---\n"))
	asks := bytes.Contains(monitor, []byte("port:")) || bytes.Contains(monitor, []byte("portNumber:"))
	if len(c.Ports) > 0 || asks || !bytes.Contains(monitor, []byte("replacement: $1:10249\n")) || !bytes.Contains(monitor, []byte("regex: "+c.Name+"\n")) {
		t.Errorf("the agent declares %v, the monitor is\n%s", c.Ports, monitor)
	}
}
