// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nearlb/nearlb/tests/cluster/image"
	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/cluster/workload/client"
	"github.com/nearlb/nearlb/tests/daemonset"
	"github.com/nearlb/nearlb/tests/privileged"
	"github.com/nearlb/nearlb/tests/repository"
)

// patience is long: only what never comes is a failure. kubectl is told the same.
const (
	patience = client.Patience
	limit    = "--timeout=4m"
)

// A whole cluster takes a minute of two processors: `make kube-smoke` and the gate ask for it.
func TestTheProductIsInstalledServesIsUpdatedAndRemoved(t *testing.T) {
	wanted(t, "NEARLB_KUBE", "make kube-smoke")
	s := start(t, kube.PointToPoint)
	s.install()
	s.serve()
	s.outside.keepAsking(t)
	s.update()
	s.restart()
	s.remove()
}

// wanted skips a test that a target asks for by a variable, unless it does and the machine can.
func wanted(t *testing.T, variable, target string) {
	t.Helper()
	if os.Getenv(variable) == "" {
		t.Skipf("%s is not set: %s runs this", variable, target)
	}
	privileged.Require(t)
	// A kernel without a part is the only reason to skip with NEARLB_REQUIRE_PRIVILEGED=1, here as elsewhere: nothing can be asked to mend it.
	lacks, err := kube.MissingOfKernel()
	if len(lacks) > 0 {
		t.Skipf("this machine's kernel cannot run the cluster. It lacks: %s", strings.Join(lacks, "; "))
	}
	must(t, err)
	if lacks := kube.MissingPrograms(); len(lacks) > 0 {
		t.Fatalf("make kube-packages installs what is missing: %s", strings.Join(lacks, "; "))
	}
}

// smoke is the cluster of a test.
type smoke struct {
	*testing.T
	*kube.Cluster
	root    string // of the repository
	outside *outside
}

func start(t *testing.T, network kube.Network) *smoke {
	t.Helper()
	root, err := repository.Root()
	must(t, err)
	c, err := kube.Start(t.Context(), kube.Options{Nodes: kube.ThreeNodes, Network: network, Log: t.Output()})
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			c.ShowLogs()
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return &smoke{T: t, Cluster: c, root: root, outside: newOutside(t, c)}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kubectl gives what it printed.
func (s *smoke) kubectl(args ...string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience+time.Minute)
	defer cancel()
	out, err := s.Kubectl(ctx, args...)
	if err != nil {
		state, _ := s.Kubectl(s.Context(), "get", "pods,events", "-A", "-o", "wide")
		s.Fatalf("%v\n%s", err, state)
	}
	return out
}

// await asks once a second.
func (s *smoke) await(what string, holds func() error) {
	s.Helper()
	var err error
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Second) {
		if err = holds(); err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.Fatalf("%s: %v", what, err)
		}
	}
}

// install is README's, in kube-proxy's place.
func (s *smoke) install() {
	s.importImages()
	servers := s.kubectl("-n", "default", "get", "endpointslice", "kubernetes", "-o", "go-template={{range .endpoints}}{{range .addresses}}https://"+
		`{{if eq $.addressType "IPv6"}}[{{.}}]{{else}}{{.}}{{end}}:{{(index $.ports 0).port}},{{end}}{{end}}`)
	s.kubectl("-n", "kube-system", "create", "configmap", "nearlb-config", "--from-literal=api-server="+servers)
	s.kubectl("apply", "-k", s.overlay("replace-kube-proxy"))
	s.awaitAgents()
}

// importImages gives the nodes two of nearlb.
func (s *smoke) importImages() {
	for _, name := range []string{"nearlb:latest", "nearlb:next"} {
		must(s.T, s.Import(s.Context(), s.image(name)))
	}
}

// image is the product's image by a name, as a tarball.
func (s *smoke) image(name string) string {
	program, err := daemonset.Program()
	must(s.T, err)
	made, err := image.FromDockerfile(filepath.Join(s.root, "manifests/Dockerfile"), name, program, name)
	must(s.T, err)
	file := filepath.Join(s.TempDir(), "image.tar")
	must(s.T, made.Write(file))
	return file
}

func (s *smoke) overlay(name string) string {
	return filepath.Join(s.root, "manifests/overlays", name)
}

// awaitAgents waits until the probes say that all agents are ready, and until they say themselves that they serve, without trouble.
func (s *smoke) awaitAgents() {
	s.Helper()
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset/nearlb", limit)
	for _, pod := range s.agents() {
		s.await(pod, func() error {
			out, err := s.Kubectl(s.Context(), "-n", "kube-system", "exec", pod, "-c", "agent", "--", "nearlb", "status")
			if err == nil && (!strings.Contains(out, "agent     serving") || strings.Contains(out, "\ntrouble ")) {
				err = errors.New(out)
			}
			return err
		})
	}
}

// agents are the pods of the agents, one on each node.
func (s *smoke) agents() []string {
	s.Helper()
	pods := strings.Fields(s.kubectl("-n", "kube-system", "get", "pods", "-l", "app.kubernetes.io/name=nearlb", "-o", "name"))
	if len(pods) != len(s.Nodes) {
		s.Fatalf("agents: %v", pods)
	}
	return pods
}

// clients hold connections from a pod and from a node, as the test itself does from outside.
var clients = []string{"from-pod", "from-node"}

// serve makes Services of every kind, and clients of them.
func (s *smoke) serve() {
	s.kubectl("apply", "-f", "testdata/servers.yaml")
	s.kubectl("patch", "service", "web", "--subresource=status", "--type=merge", "-p",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"198.51.100.81"},{"ip":"fd51::81"}]}}}`)
	s.kubectl("rollout", "status", "daemonset/web", limit)
	s.outside.hold(s)
	s.kubectl("apply", "-f", "testdata/clients.yaml")
	s.awaitAnswers()
}

// awaitAnswers waits until the connections that are held have answered more often than they had, each of them: one that is lost ends
// the client.
func (s *smoke) awaitAnswers() {
	s.Helper()
	s.outside.goOn(s.T)
	for _, client := range clients {
		before := -1
		s.await(client, func() error {
			log, err := s.API.CoreV1().Pods("default").GetLogs(client, &corev1.PodLogOptions{}).DoRaw(s.Context())
			if err != nil {
				return err // its node's kubelet may just start
			}
			if strings.Contains(string(log), "lost") {
				s.Fatalf("%s:\n%s", client, log)
			}
			answers := strings.Count(string(log), "answers")
			if before < 0 {
				before = answers
			}
			if answers < before+2 {
				return fmt.Errorf("answered %d times, %d at first:\n%s", answers, before, log)
			}
			return nil
		})
	}
}

// update is a rolling update to another image, beside connections.
func (s *smoke) update() {
	s.kubectl("-n", "kube-system", "set", "image", "daemonset/nearlb", "mount-bpffs=nearlb:next", "agent=nearlb:next")
	s.awaitAgents()
	s.awaitAnswers()
}

// restart is that of the programs which look after pods.
func (s *smoke) restart() {
	must(s.T, s.Nodes[0].RestartKubelet())
	must(s.T, s.Nodes[1].RestartContainerd())
	s.awaitAnswers()
	s.kubectl("wait", "--for=condition=Ready", "nodes", "--all", limit)
	s.awaitAgents()
}

// awaitDebugged waits until what kubectl debug ran on nodes has ended well.
func (s *smoke) awaitDebugged() {
	s.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pods", "-l", "app.kubernetes.io/managed-by=kubectl-debug", limit)
}

// remove is README's, and leaves nothing.
func (s *smoke) remove() {
	s.kubectl("delete", "-k", s.overlay("replace-kube-proxy"))
	s.kubectl("-n", "kube-system", "wait", "--for=delete", "pods", "-l", "app.kubernetes.io/name=nearlb", limit)
	s.awaitAnswers() // without agents
	must(s.T, s.outside.drop())
	for _, n := range s.Nodes {
		s.kubectl("debug", "node/"+n.Name, "--profile=sysadmin", "--image=nearlb:latest", "--image-pull-policy=IfNotPresent", "--",
			"nearlb", "cleanup", "--pin-path", "/host/sys/fs/bpf/nearlb", "--lock-dir", "/host/run/nearlb")
	}
	s.awaitDebugged()
	s.checkNothingLeft()
	if _, err := s.outside.dial("tcp", netip.AddrPortFrom(s.Nodes[0].V4, 30080)); err == nil {
		s.Error("the NodePort is served still")
	}
}

// checkNothingLeft holds the nodes to what cleanup says that it takes away.
func (s *smoke) checkNothingLeft() {
	s.Helper()
	s.checkNothing("of nearlb", "ls /run/nearlb; ls /sys/fs/bpf | grep -v debug; tc qdisc show | grep clsact; nft list tables | grep -i nearlb")
}

// checkNothing wants a command to find nothing on any node.
func (s *smoke) checkNothing(what, command string) {
	s.Helper()
	for _, n := range s.Nodes {
		if left, err := n.Run(s.Context(), nil, "sh", "-c", command+"; true"); err != nil || strings.TrimSpace(left) != "" {
			s.Errorf("%s on %s is left: %v %s", what, n.Name, err, left)
		}
	}
}
