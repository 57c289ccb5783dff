// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// suite is a choice among Kubernetes' tests.
type suite struct {
	focus, skip string // expressions on the names; "": all, none
	procs       int    // how many tests run at once
}

// left are tests of sig-network that this cluster has no part for, whoever serves the Services.
var left = []struct{ name, labels, why string }{
	{"load balancers, ingress", "Feature: containsAny { LoadBalancer, Ingress, NEG }", "want a cloud provider"},
	{"network policies", "Feature: containsAny { NetworkPolicy }", "want a policy engine"},
	{"SCTP", "Feature: containsAny { SCTPConnectivity }", "wants a kernel with it"},
	{"other addresses and names", "Feature: containsAny { Networking-IPv4, Networking-IPv6, Networking-DNS }", "want the Internet"},
	{"measurements", "Feature: containsAny { Networking-Performance, PerformanceDNS }", "want machines of their own"},
	{"nfacct", "Feature: containsAny { KubeProxyNFAcct }", "is iptables' own"},
	{"restarts of the cluster's parts", "Disruptive", "want SSH"},
}

// run has the tests run in a cluster, and gives what became of each.
func (s suite) run(ctx context.Context, c *cluster) ([]types.SpecReport, error) {
	programs := map[string]string{}
	for _, name := range []string{"e2e.test", "ginkgo", "kubectl"} {
		var err error
		if programs[name], err = build(name); err != nil {
			return nil, err
		}
	}
	report := filepath.Join(c.dir, "report.json")
	_ = os.Remove(report)
	arguments := []string{fmt.Sprintf("--procs=%d", s.procs), "--timeout=6h", "--no-color", "--keep-going", "--json-report=report.json", "--output-dir=" + c.dir,
		"--label-filter=" + filter(), "--focus=" + s.focus}
	if s.skip != "" {
		arguments = append(arguments, "--skip="+s.skip)
	}
	arguments = append(arguments, programs["e2e.test"], "--", "--kubeconfig="+c.Kubeconfig, "--kubectl-path="+programs["kubectl"], "--provider=local", fmt.Sprintf("--num-nodes=%d", len(c.Nodes)),
		"--dns-domain=cluster.local", "--delete-namespace-on-failure=true", "--report-dir="+filepath.Join(c.dir, "report"))
	command := exec.CommandContext(ctx, programs["ginkgo"], arguments...)
	log, err := os.Create(filepath.Join(c.dir, "tests.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	command.Stdout, command.Stderr = log, log
	interruptible(command)
	ended := command.Run() // an error, too, if a test failed
	if ctx.Err() != nil && command.Process != nil {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // those of its processes that did not end
	}
	specs, err := read(report)
	if err != nil {
		return nil, errors.Join(ended, err)
	}
	return specs, nil
}

// interruptible has a command's processes, not the first alone, end as ^C at a terminal has them: ginkgo waits for the test programs, which
// clean up, and tells them nothing itself. After a minute it is killed.
func interruptible(command *exec.Cmd) {
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = time.Minute
}

// filter is the expression of labels of what runs.
func filter() string {
	words := []string{"sig-network"}
	for _, l := range left {
		words = append(words, "!("+l.labels+")")
	}
	return strings.Join(words, " && ")
}

// read gives the tests of a report: those that were not chosen, too.
func read(report string) (specs []types.SpecReport, err error) {
	text, err := os.ReadFile(report)
	if err != nil {
		return nil, err
	}
	var suites []types.Report
	if err := json.Unmarshal(text, &suites); err != nil {
		return nil, fmt.Errorf("read %s: %w", report, err)
	}
	for _, suite := range suites {
		if !suite.SuiteSucceeded && len(suite.SpecReports) == 0 {
			return nil, fmt.Errorf("the tests did not run: %s", strings.Join(suite.SpecialSuiteFailureReasons, "; "))
		}
		for _, spec := range suite.SpecReports {
			if spec.LeafNodeType == types.NodeTypeIt {
				specs = append(specs, spec)
			}
		}
	}
	return specs, nil
}
