// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/tests/daemonset"
)

func TestEveryOverlayInstallsAnAgentWithoutPrivilege(t *testing.T) {
	for _, overlay := range Overlays() {
		t.Run(overlay, func(t *testing.T) {
			all := kustomized(t, overlay)
			for _, name := range []string{"ServiceAccount nearlb", "ClusterRole nearlb", "ClusterRoleBinding nearlb"} {
				if all[name] == nil {
					t.Errorf("no %s", name)
				}
			}
			set, c := daemonSet(t, all)
			spec, security := set.Spec.Template.Spec, c.SecurityContext
			if !spec.HostNetwork || spec.HostPID || spec.HostIPC {
				t.Errorf("namespaces of the host: network %v, processes %v, IPC %v; want the network alone", spec.HostNetwork, spec.HostPID, spec.HostIPC)
			}
			if security.Privileged != nil || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("the agent has more than it needs: %+v", security)
			}
			if diff := cmp.Diff([]corev1.Capability{"BPF", "NET_ADMIN", "NET_BIND_SERVICE", "PERFMON"}, security.Capabilities.Add); diff != "" {
				t.Error(diff)
			}
			if update := set.Spec.UpdateStrategy.RollingUpdate; update.MaxUnavailable.String() != "10%" || update.MaxSurge != nil {
				t.Errorf("update %v, want a tenth of the nodes at a time, without a second agent on any", update)
			}
			if spec.PriorityClassName != "system-node-critical" || len(spec.Tolerations) != 1 || spec.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) {
				t.Errorf("priority %q, tolerations %v: want it on every node", spec.PriorityClassName, spec.Tolerations)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || len(c.Resources.Limits) > 0 {
				t.Errorf("resources %v, want requests and no limits", c.Resources)
			}
			for _, m := range c.VolumeMounts {
				if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
					t.Errorf("%s: the agent may mount on the node", m.MountPath)
				}
			}
		})
	}
}

// The kubelet asks where the agent listens, of the address that it has there.
func TestProbesAskWhereTheAgentAnswers(t *testing.T) {
	for _, overlay := range append(Overlays(), "overlays/handover", "overlays/handover-alone") {
		_, c := daemonSet(t, kustomized(t, overlay))
		address := agent.DefaultOptions().HealthAddress
		text, err := Kustomize(overlay)
		if err != nil {
			t.Fatal(err)
		}
		set, err := daemonset.Read(text)
		if err != nil {
			t.Fatal(err)
		}
		if own := set.Flag("health-address"); own != "" {
			address = own
		}
		for path, probe := range map[string]*corev1.Probe{"/livez": c.LivenessProbe, "/livez ": c.StartupProbe, "/readyz": c.ReadinessProbe} {
			get := probe.HTTPGet
			if got := net.JoinHostPort(get.Host, fmt.Sprint(get.Port.IntValue())); got != address || get.Path != filepath.Clean(path[:len(get.Path)]) {
				t.Errorf("%s: %s is asked of %s, want %s of %s", overlay, get.Path, got, path, address)
			}
		}
	}
}

// Beside kube-proxy the agent has ports of its own, which no Service author can reach.
func TestATrialKeepsOffKubeProxysPorts(t *testing.T) {
	text, err := Kustomize("overlays/trial")
	if err != nil {
		t.Fatal(err)
	}
	set, err := daemonset.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range []string{"health-address", "metrics-address"} {
		host, port, err := net.SplitHostPort(set.Flag(flag))
		if err != nil || host != "127.0.0.1" || slices.Contains([]string{"10248", "10249", "10250", "10256", "10257", "10258", "10259"}, port) {
			t.Errorf("--%s=%s: want the loopback address and a port that no part of Kubernetes has", flag, set.Flag(flag))
		}
	}
	if set.Flag("service-proxy-name") != "nearlb" {
		t.Errorf("it serves %v", set.Agent.Args)
	}
}

// While connections are handed over an agent has SYS_ADMIN as well, and nothing else that it has not in kube-proxy's place.
func TestTheHandOverIsTheReplacementWithOneCapabilityAndOtherPorts(t *testing.T) {
	want := kustomized(t, "overlays/replace-kube-proxy")
	_, c := daemonSet(t, want)
	c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "SYS_ADMIN")
	if diff := cmp.Diff(want, kustomized(t, "overlays/handover-alone")); diff != "" {
		t.Error(diff)
	}
	beside := kustomized(t, "overlays/handover")
	_, trial := daemonSet(t, kustomized(t, "overlays/trial"))
	_, c2 := daemonSet(t, beside)
	if diff := cmp.Diff(slices.DeleteFunc(trial.Args, func(a string) bool { return a == "--service-proxy-name=nearlb" }), c2.Args); diff != "" {
		t.Error(diff)
	}
	c2.Args, c2.StartupProbe, c2.LivenessProbe, c2.ReadinessProbe = c.Args, c.StartupProbe, c.LivenessProbe, c.ReadinessProbe
	if diff := cmp.Diff(want, beside); diff != "" {
		t.Error(diff)
	}
}

// Replacing kube-proxy, an agent that cannot be told of the API server waits instead of asking an address that nobody serves.
func TestWithoutKubeProxyTheAPIServersAddressIsRequired(t *testing.T) {
	for overlay, optional := range map[string]bool{"base": true, "overlays/replace-kube-proxy": false, "overlays/trial": true} {
		_, c := daemonSet(t, kustomized(t, overlay))
		at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NEARLB_API_SERVER" })
		if ref := c.Env[at].ValueFrom.ConfigMapKeyRef; ref.Name != "nearlb-config" || ref.Key != "api-server" || *ref.Optional != optional {
			t.Errorf("%s: %+v, want optional %v", overlay, ref, optional)
		}
	}
}

// withComponent is the base with a component.
func withComponent(t *testing.T, name string) map[string]runtime.Object {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := filepath.Rel(dir, Directory())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("resources: [%s/base]\ncomponents: [%s/components/%s]\n", base, base, name)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomized(t, dir)
}

// A Secret with the nodes' key is mounted where the agent looks for it, and nothing else changes.
func TestTheTunnelsKeyIsMountedByComponentAndChartAlike(t *testing.T) {
	got := withComponent(t, "tunnel-key")
	if diff := cmp.Diff(plain(got), plain(charted(t, values{"tunnelKey": values{"secret": "nearlb-tunnel"}}))); diff != "" {
		t.Errorf("the component and the chart (-kustomize +helm):\n%s", diff)
	}
	set, c := daemonSet(t, got)
	at := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NEARLB_TUNNEL_KEY_FILE" })
	mounted := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "tunnel-key" })
	if at < 0 || mounted < 0 || c.Env[at].Value != c.VolumeMounts[mounted].MountPath+"/key" || !c.VolumeMounts[mounted].ReadOnly {
		t.Fatalf("environment %v, mounts %v", c.Env, c.VolumeMounts)
	}
	spec := &set.Spec.Template.Spec
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == "tunnel-key" && v.Secret.SecretName == "nearlb-tunnel" })
	c.Env, c.VolumeMounts = slices.Delete(c.Env, at, at+1), slices.Delete(c.VolumeMounts, mounted, mounted+1)
	if diff := cmp.Diff(plain(kustomized(t, "base")), plain(got)); diff != "" {
		t.Error(diff)
	}
}

func TestTheComponentForOtherRuntimesChangesTheSeccompProfileAlone(t *testing.T) {
	got, want := withComponent(t, "unconfined-seccomp"), kustomized(t, "base")
	_, c := daemonSet(t, want)
	c.SecurityContext.SeccompProfile.Type = corev1.SeccompProfileTypeUnconfined
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
