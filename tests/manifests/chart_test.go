// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/pkg/cli"
)

type values = map[string]any

func TestTheChartAndTheKustomizationsSayTheSame(t *testing.T) {
	for overlay, v := range map[string]values{
		"base":                        {},
		"overlays/replace-kube-proxy": {"replaceKubeProxy": true},
		"overlays/trial":              {"trial": values{"enabled": true}},
		"overlays/dns":                {"dns": values{"enabled": true}},
	} {
		if diff := cmp.Diff(plain(kustomized(t, overlay)), plain(charted(t, v))); diff != "" {
			t.Errorf("%s and the chart with %v (-kustomize +helm):\n%s", overlay, v, diff)
		}
	}
}

// agentFlags are those of `nearlb agent`.
func agentFlags(t *testing.T) *pflag.FlagSet {
	t.Helper()
	cmd, _, err := cli.Root().Find([]string{"agent"})
	if err != nil || cmd.Name() != "agent" {
		t.Fatal(err, cmd)
	}
	return cmd.Flags()
}

func TestEveryValueOfTheChartReachesTheAgent(t *testing.T) {
	set, c := daemonSet(t, charted(t, values{
		"image":      values{"repository": "registry.example.com/nearlb", "tag": "v1.2.3"},
		"apiServers": []any{"https://192.0.2.1:6443", "https://192.0.2.2:6443"}, "replaceKubeProxy": true,
		"healthAddress": "[::1]:10256", "metricsAddress": ":10249", "mountBpffs": false, "seccompProfile": "Unconfined",
		"flags":        values{"nodeport-addresses": "primary", "service-cidr": []any{"10.96.0.0/12", "fd96::/108"}, "size-backends": 65536, "infer-nodes": false, "log-format": "json"},
		"nodeSelector": values{"pool": "a"}, "podLabels": values{"team": "net"}, "podAnnotations": values{"x": "y"},
		"imagePullSecrets": []any{values{"name": "pull"}},
	}))
	want := []string{"agent", "--health-address=[::1]:10256", "--metrics-address=:10249", "--infer-nodes=false", "--log-format=json",
		"--nodeport-addresses=primary", "--service-cidr=10.96.0.0/12,fd96::/108", "--size-backends=65536"}
	if diff := cmp.Diff(want, c.Args); diff != "" {
		t.Error(diff)
	}
	if err := agentFlags(t).Parse(c.Args[1:]); err != nil {
		t.Errorf("the agent refuses %v: %v", c.Args, err)
	}
	at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NEARLB_API_SERVER" })
	if got := c.Env[at].Value; got != "https://192.0.2.1:6443,https://192.0.2.2:6443" || c.Env[at].ValueFrom != nil {
		t.Errorf("API servers %q", got)
	}
	if get := c.LivenessProbe.HTTPGet; get.Host != "::1" || get.Port.IntValue() != 10256 {
		t.Errorf("probe %v", get)
	}
	spec := set.Spec.Template
	if c.Image != "registry.example.com/nearlb:v1.2.3" || len(spec.Spec.InitContainers) != 0 || spec.Spec.NodeSelector["pool"] != "a" || spec.Labels["team"] != "net" ||
		spec.Annotations["x"] != "y" || len(spec.Spec.ImagePullSecrets) != 1 || c.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeUnconfined {
		t.Errorf("image %s, pod %+v", c.Image, spec)
	}
}

func TestTheAgentMayReadPodsOnlyToVerifyTheirAddresses(t *testing.T) {
	for _, row := range []struct {
		values values
		may    bool
	}{
		{values{}, false},
		{values{"dns": values{"enabled": true}}, false},
		{values{"flags": values{"dns-pods": "verified"}}, false},
		{values{"dns": values{"enabled": true}, "flags": values{"dns-pods": "verified"}}, true},
	} {
		text, _, err := Chart(row.values)
		if err != nil {
			t.Fatal(err)
		}
		if may := strings.Contains(string(text), "resources: [pods]"); may != row.may {
			t.Errorf("%v: pods may be read: %v", row.values, may)
		}
	}
}

func TestServingTheSocketsOfPodsTakesWhatItNeeds(t *testing.T) {
	set, c := daemonSet(t, charted(t, values{"flags": values{"socket-lb": "all"}}))
	caps := c.SecurityContext.Capabilities.Add
	if !set.Spec.Template.Spec.HostPID || !slices.Contains(caps, "SYS_ADMIN") || !slices.Contains(caps, "SYS_PTRACE") || !*c.SecurityContext.AllowPrivilegeEscalation {
		t.Errorf("hostPID %v, %v", set.Spec.Template.Spec.HostPID, c.SecurityContext)
	}
}

// The schema names every flag that has no value of its own in the chart, so that a misspelt one is refused.
func TestTheChartKnowsEveryFlag(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Directory(), "helm/nearlb/values.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Flags struct {
				AdditionalProperties bool
				Properties           map[string]any
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	elsewhere := []string{"node-name", "kubeconfig", "manifests", "pin-path", "lock-dir", "api-server", "health-address", "metrics-address", "service-proxy-name", "dns", "help"}
	known := schema.Properties.Flags.Properties
	agentFlags(t).VisitAll(func(f *pflag.Flag) {
		if (known[f.Name] == nil) != slices.Contains(elsewhere, f.Name) {
			t.Errorf("--%s: in values.schema.json under flags: %v", f.Name, known[f.Name] != nil)
		}
		delete(known, f.Name)
	})
	if len(known) > 0 || schema.Properties.Flags.AdditionalProperties {
		t.Errorf("no flags of the agent: %v", known)
	}
}

func TestValuesThatCannotWorkAreRefused(t *testing.T) {
	for want, v := range map[string]values{
		"want one of them":     {"replaceKubeProxy": true, "trial": values{"enabled": true}},
		"nobody off the node":  {"metrics": values{"service": values{"enabled": true}}},
		"set it to :10249":     {"metrics": values{"serviceMonitor": values{"enabled": true}}, "metricsAddress": "[::1]:10249"},
		"/apiServers":          {"apiServers": "https://192.0.2.1"},
		"/apiServers/0":        {"apiServers": []any{"https://192.0.2.1/path"}},
		"/healthAddress":       {"healthAddress": "10256"},
		"/flags":               {"flags": values{"node-port-addresses": "primary"}},
		"'replicas'":           {"replicas": 3},
		"/seccompProfile":      {"seccompProfile": "Localhost"},
		"/trial/proxyName":     {"trial": values{"proxyName": "-"}},
		"/updateStrategy":      {"updateStrategy": "OnDelete"},
		"/image/pullPolicy":    {"image": values{"pullPolicy": "Sometimes"}},
		"/nodeSelector/number": {"nodeSelector": values{"number": 1}},
	} {
		if text, _, err := Chart(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want an error with %q; rendered %d bytes", v, err, want, len(text))
		}
	}
}

func TestMetricsAreAServiceAndAMonitorIfAsked(t *testing.T) {
	text, _, err := Chart(values{"metricsAddress": ":10249", "metrics": values{"serviceMonitor": values{"enabled": true, "labels": values{"release": "prometheus"}}}})
	if err != nil {
		t.Fatal(err)
	}
	monitor, rest, found := strings.Cut(string(text), "apiVersion: monitoring.coreos.com/v1\n") // a type of somebody else's module
	if !found || !strings.Contains(rest, "release: prometheus") || !strings.Contains(rest, "port: metrics") ||
		!strings.Contains(rest, "honorLabels: true") || !strings.Contains(rest, "jobLabel: app.kubernetes.io/name") { // as alerts and dashboard want them
		t.Errorf("no ServiceMonitor in\n%s", text)
	}
	_, after, _ := strings.Cut(rest, "\n---\n")
	all := objects(t, []byte(strings.TrimSuffix(strings.TrimSpace(monitor), "---")+"\n---\n"+after))
	service, ok := all["Service nearlb-metrics"].(*corev1.Service)
	if !ok || service.Spec.Ports[0].Port != 10249 || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("%+v", service)
	}
	set, c := daemonSet(t, all)
	for key, value := range service.Spec.Selector {
		if set.Spec.Template.Labels[key] != value {
			t.Errorf("the Service does not select the agents: %v", service.Spec.Selector)
		}
	}
	if !slices.Contains(c.Args, "--metrics-address=:10249") {
		t.Error(c.Args)
	}
}

func TestNotesSayWhatIsServedAndWhatIsMissing(t *testing.T) {
	for want, v := range map[string]values{
		"nearlb serves all Services.":                                       {},
		"service-proxy-name: mine, beside kube-proxy":                       {"trial": values{"enabled": true, "proxyName": "mine"}},
		"The agents wait for the API servers' own addresses":                {"replaceKubeProxy": true},
		"Without kube-proxy the agents need the API servers' own addresses": {},
		"kubectl -n kube-system exec ds/nearlb -- nearlb status":            {"apiServers": []any{"192.0.2.1:6443"}},
	} {
		_, notes, err := Chart(v)
		if err != nil || !strings.Contains(notes, want) {
			t.Errorf("%v: %v, notes without %q:\n%s", v, err, want, notes)
		}
	}
}
