// SPDX-License-Identifier: Apache-2.0

package script

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Processes of both programs: what they print, on both outputs, and how they end. The plugin is as it is built, from less than nearlb is; this
// program has all that nearlb is built from, and is it by its name.
func TestBothProgramsAnswerAPlanAlike(t *testing.T) {
	dir := t.TempDir()
	plugin := filepath.Join(dir, "kubectl-nearlb")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", plugin, "../../cmd/kubectl-nearlb").CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	objects, other := filepath.Join(dir, "objects.yaml"), filepath.Join(dir, "other.yaml")
	moved := strings.Replace(planned, "10.1.0.2", "10.1.0.3", 1) + wrongAnnotation
	if err := errors.Join(os.WriteFile(objects, []byte(planned), 0o600), os.WriteFile(other, []byte(moved), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args   string
		stdin  string
		env    string
		status int
	}{
		{args: "plan -f " + objects + " --node n1"},
		{args: "plan -f " + objects + " --node N1 -o wide"},
		{args: "plan -f - --node n1 --zone a -o json", stdin: planned},
		{args: "plan --node=n1 -f" + objects, env: "NEARLB_OUTPUT=yaml"},
		{args: "plan -f " + objects, env: "NEARLB_OUTPUT=jsonl"},
		{args: "plan -f " + objects, env: "NEARLB_OUTPUT=tea", status: 2},
		{args: "plan --diff " + objects + " " + other + " --node n1"},
		{args: "plan --diff " + objects + " " + other + " --node n1 --strict -o json", status: 1},
		{args: "plan -f " + other + " --node n1 --strict", status: 1},
		{args: "plan --help"},
		{args: "plan", status: 2},
		{args: "plan words", status: 2},
		{args: "plan -f nowhere.yaml", status: 2},
		{args: "plan -f - -f -", status: 2},
		{args: "plan -f - --nod n1", status: 2},
		{args: "plan -f - -o xml", status: 2},
	} {
		t.Run(row.args+" "+row.env, func(t *testing.T) {
			var said [2]string
			for i, program := range []string{program, plugin} {
				var out, errs strings.Builder
				cmd := exec.Command(program, strings.Fields(row.args)...)
				cmd.Env = append(os.Environ(), row.env)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(row.stdin), &out, &errs
				var ended *exec.ExitError
				if err := cmd.Run(); err != nil && !errors.As(err, &ended) {
					t.Fatal(err)
				}
				said[i] = out.String() + "-- stderr --\n" + errs.String()
				if got := cmd.ProcessState.ExitCode(); got != row.status {
					t.Errorf("%s ended with %d, want %d:\n%s", program, got, row.status, said[i])
				}
			}
			if diff := cmp.Diff(said[0], said[1]); diff != "" {
				t.Errorf("from nearlb's to the plugin's:\n%s", diff)
			}
		})
	}
}

// planned are objects of both families; wrongAnnotation is a Service with a problem.
const planned = `
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default}, spec: {clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, "2001:db8::10"], ports: [{port: 80}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-4, namespace: default, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: "", port: 80}],
 endpoints: [{addresses: [10.1.0.1], nodeName: n1}, {addresses: [10.1.0.2], nodeName: n2, zone: b}]}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-6, namespace: default, labels: {kubernetes.io/service-name: web}}, addressType: IPv6, ports: [{name: "", port: 80}],
 endpoints: [{addresses: ["2001:db8:1::1"], nodeName: n2, conditions: {ready: false}}]}
`

const wrongAnnotation = `
---
{apiVersion: v1, kind: Service, metadata: {name: wrong, namespace: default, annotations: {nearlb.io/topolgy-keys: zone}}, spec: {clusterIP: 10.96.9.9, ports: [{port: 80}]}}
`
