// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nearlb/nearlb/tests/cluster/control"
	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/cluster/workload/client"
)

// A cluster whose kube-proxy is a DaemonSet is handed over by the commands of docs/install.md, word for word, and given back by them:
// `make kube-handover`. Connections are held all the time, until they are what a command has to wait for, and new ones are made: none is lost.
func TestAKubeProxyDaemonSetHandsItsClusterOverAndBackWithoutALostConnection(t *testing.T) {
	wanted(t, "NEARLB_HANDOVER", "make kube-handover")
	s := start(t, kube.PointToPoint)
	s.startKubeProxy()
	s.importImages()
	s.serve()
	s.outside.keepAsking(t)
	makers := s.makeAll()
	page := s.readInstall()

	must(t, s.try(page.servers))
	for _, command := range page.over {
		s.follow(command)
	}
	s.checkNothing("of kube-proxy", "nft list tables | grep kube-proxy")

	s.startKubeProxy()
	for _, command := range page.back {
		s.follow(command)
	}
	makers.end(nil)
	s.checkNothingLeft()
}

func (s *smoke) startKubeProxy() {
	must(s.T, s.InstallKubeProxy(s.Context()))
	s.kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-proxy", limit)
}

// installPage is what docs/install.md has people type.
type installPage struct {
	servers    string // names the API servers
	over, back []string
}

// readInstall finds the commands in their sections.
func (s *smoke) readInstall() (page installPage) {
	text, err := os.ReadFile(filepath.Join(s.root, "docs/install.md"))
	must(s.T, err)
	first, rest, _ := strings.Cut(string(text), "\n## Coming from kube-proxy, and back\n")
	section, _, _ := strings.Cut(rest, "\n## ")
	over, back, _ := strings.Cut(section, "\nBack: ")
	page.over, page.back = commands(over), commands(back)
	for _, command := range commands(first) {
		if strings.Contains(command, "create configmap nearlb-config") {
			page.servers = command
			break
		}
	}
	if page.servers == "" || len(page.over) == 0 || len(page.back) == 0 {
		s.Fatalf("the page has not the commands that it had: %+v", page)
	}
	return page
}

// commands are the indented lines of a page.
func commands(text string) (all []string) {
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", "")) {
		if command, indented := strings.CutPrefix(line, "    "); indented {
			all = append(all, strings.TrimSpace(command))
		}
	}
	return all
}

// follow types a command as somebody does who reads the comments beside it: for each node where it names one, and once what it asks for is so.
func (s *smoke) follow(command string) {
	s.Logf("%s: %s", time.Now().UTC().Format(time.TimeOnly), command)
	watches := strings.Contains(command, "--watch")
	switch {
	case strings.Contains(command, "kube-proxy --cleanup"):
		s.holdOthers()
		s.awaitNoneLeft()
	case watches:
		s.holdOthers()
	}
	for _, c := range s.forNodes(command) {
		switch {
		case watches:
			s.watch(c, regexp.MustCompile(`nearlb's +(none|0 TCP)`))
		case strings.Contains(c, "--to kube-proxy"): // which refuses until kube-proxy has its rules
			s.await(c, func() error { return s.try(c) })
		default:
			must(s.T, s.try(c))
		}
	}
	switch {
	case strings.HasPrefix(command, "kubectl apply"):
		s.awaitAgents()
	case strings.HasPrefix(command, "kubectl delete -k"):
		s.kubectl("-n", "kube-system", "wait", "--for=delete", "pods", "-l", "app.kubernetes.io/name=nearlb", limit)
	case strings.HasPrefix(command, "kubectl debug"):
		s.awaitDebugged()
	}
	s.awaitAnswers()
}

// forNodes is a command for each node, or the one command if it names none.
func (s *smoke) forNodes(command string) (all []string) {
	switch {
	case strings.Contains(command, "NODE"):
		for _, n := range s.Nodes {
			all = append(all, strings.ReplaceAll(command, "NODE", n.Name))
		}
	case strings.Contains(command, " POD "):
		for _, pod := range s.agents() {
			all = append(all, strings.ReplaceAll(command, " POD ", " "+pod+" "))
		}
	default:
		all = []string{command}
	}
	return all
}

// shell runs a command in the repository, with the cluster's kubectl, and with a directory for what it keeps.
func (s *smoke) shell(ctx context.Context, command string) *exec.Cmd {
	program, err := control.Program()
	must(s.T, err)
	dir := s.TempDir()
	must(s.T, os.WriteFile(filepath.Join(dir, "kubectl"), fmt.Appendf(nil, "#!/bin/sh\nexec %s kubectl --kubeconfig %s \"$@\"\n", program, s.Kubeconfig), 0o755))
	c := exec.CommandContext(ctx, "sh", "-c", command)
	c.Dir, c.Env = s.root, append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "KUBECONFIG="+s.Kubeconfig, "HOME="+dir)
	c.WaitDelay = client.Attempt
	return c
}

func (s *smoke) try(command string) error {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	if out, err := s.shell(ctx, command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return nil
}

// watch runs a command that goes on until it says what it is watched for.
func (s *smoke) watch(command string, until *regexp.Regexp) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	c := s.shell(ctx, "exec "+command)
	out, err := c.StdoutPipe()
	must(s.T, err)
	must(s.T, c.Start())
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan() && !until.MatchString(lines.Text()); {
		fmt.Fprintln(&said, lines.Text())
	}
	if ctx.Err() != nil {
		s.Fatalf("%s: never said %s:\n%s", command, until, said.String())
	}
	cancel()
	_ = c.Wait() // it was killed
}

// makeAll has connections made to the Services of the soak, once these answer on each node.
func (s *smoke) makeAll() *makers {
	s.kubectl("apply", "-f", "testdata/soak.yaml")
	s.kubectl("rollout", "status", "deployment/shop", limit)
	for _, n := range s.Nodes {
		s.awaitNodePorts(n)
	}
	return newMakers(s)
}

// holdOthers ends the connections that are held, and has new ones held.
func (s *smoke) holdOthers() {
	s.kubectl("delete", "-f", "testdata/clients.yaml")
	must(s.T, s.outside.drop())
	s.outside.hold(s)
	s.kubectl("apply", "-f", "testdata/clients.yaml")
	s.awaitAnswers()
}

// awaitNoneLeft waits until `nearlb handover` says on each node that no connection needs kube-proxy's rules, which are there still.
func (s *smoke) awaitNoneLeft() {
	for _, pod := range s.agents() {
		s.await(pod, func() error {
			out, err := s.Kubectl(s.Context(), "-n", "kube-system", "exec", pod, "-c", "agent", "--", "nearlb", "handover", "-o", "json")
			if err != nil {
				return err
			}
			var state struct {
				KubeProxy struct {
					Rules       []string
					Connections struct{ TCP, SCTP int }
				}
			}
			if err := json.Unmarshal([]byte(out), &state); err != nil {
				return err
			}
			if len(state.KubeProxy.Rules) == 0 || state.KubeProxy.Connections.TCP+state.KubeProxy.Connections.SCTP > 0 {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
	}
}
