// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
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

// Agents are on the hosts' network: a policy that chose them, or let others reach them, by labels would do nothing.
func TestTheNetworkPolicyLetsPrometheusReachWhatItScrapes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Directory(), "monitoring", "networkpolicy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var policy networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict(text, &policy); err != nil {
		t.Fatal(err)
	}
	set, _ := daemonSet(t, kustomized(t, "base"))
	chooses, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil {
		t.Fatal(err)
	}
	if !set.Spec.Template.Spec.HostNetwork || chooses.Matches(labels.Set(set.Spec.Template.Labels)) {
		t.Errorf("the policy chooses %v; the agents are %v, on the hosts' network: %v", chooses, set.Spec.Template.Labels, set.Spec.Template.Spec.HostNetwork)
	}
	protocol, port := corev1.ProtocolTCP, intstr.FromInt32(10249)
	want := networkingv1.NetworkPolicySpec{
		PodSelector: policy.Spec.PodSelector,
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		Egress:      []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &protocol, Port: &port}}}},
	}
	if diff := cmp.Diff(want, policy.Spec); diff != "" {
		t.Errorf("the policy lets more or less out than to the scraped port (-want +got):\n%s", diff)
	}
	monitor, err := os.ReadFile(filepath.Join(Directory(), "monitoring", "podmonitor.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if scraped := strings.Count(string(monitor), ":"+port.String()+"'"); scraped != 2 {
		t.Errorf("the monitor scrapes port %v %d times, want of both families:\n%s", &port, scraped, monitor)
	}
}
