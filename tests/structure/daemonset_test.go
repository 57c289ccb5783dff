// SPDX-License-Identifier: Apache-2.0

package structure

import (
	"os"
	"path"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/nearlb/nearlb/pkg/agent"
)

// Where the agent looks by default: for pins, for its lock and its status, for the cgroups of the node's sockets.
func TestTheDaemonSetHasTheNodesDirectoriesThatTheAgentWorksIn(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root(t), "manifests", "base", "daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict(text, &set); err != nil {
		t.Fatal(err)
	}
	spec := set.Spec.Template.Spec
	if !spec.HostNetwork || len(spec.Containers) != 1 {
		t.Fatalf("host network %v and %d containers, want one in the network of the node", spec.HostNetwork, len(spec.Containers))
	}
	there := map[string]string{}
	for _, v := range spec.Volumes {
		if v.HostPath != nil {
			there[v.Name] = v.HostPath.Path
		}
	}
	here := map[string]bool{}
	for _, m := range spec.Containers[0].VolumeMounts {
		if at, nodes := there[m.Name]; nodes && at != m.MountPath {
			t.Errorf("%s is the node's %q, want the same directory", m.MountPath, there[m.Name])
		}
		here[m.MountPath] = true
	}
	defaults := agent.DefaultOptions()
	for _, dir := range []string{path.Dir(defaults.PinPath), defaults.LockDir, "/sys/fs/cgroup"} {
		if !here[dir] {
			t.Errorf("the node's %s is not mounted", dir)
		}
	}
}
