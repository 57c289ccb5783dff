// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
	"github.com/nearlb/nearlb/tests/rig"
)

// proxy is who is measured, on a node of its own.
type proxy struct {
	name   string
	node   *lab.Node
	prober *prober
	near   [2]netip.Addr
	limit  time.Duration // for a start and for a change: what takes longer does not come

	start func(kubeconfig string) (*lab.Process, error)
	names func(kubeconfig string) (*lab.Process, error) // start it so that it answers names as well; nil: it cannot
	end   func(*lab.Process) error
	// wipe takes away everything that it left in the kernel.
	wipe func() error
	// published tells when everything was, and what is wrong; ok: it says so.
	published func(pid int) (at time.Time, wrong string, ok bool)
	// rest is the time between two measured changes.
	rest func() time.Duration
}

// addNode makes the node, its pods and its servers.
func (p *proxy) addNode(l *lab.Lab, name string) error {
	var err error
	if p.node, err = l.AddNode(lab.NodeOptions{Name: name, Zone: nearZone}); err != nil {
		return err
	}
	client, err := p.node.AddPod("client")
	if err != nil {
		return err
	}
	p.prober = &prober{from: client}
	for i, name := range nearServers {
		pod, err := p.node.AddPod(name)
		if err != nil {
			return err
		}
		if _, err := pod.Serve(targetPort); err != nil {
			return err
		}
		p.near[i] = pod.V4
	}
	return nil
}

// run runs a program on the node to its end.
func (p *proxy) run(name string, argv ...string) error {
	process, err := p.node.Start(name, argv)
	if err != nil {
		return err
	}
	<-process.Ended()
	if process.ExitCode() != 0 {
		text, _ := os.ReadFile(process.Log)
		return fmt.Errorf("run %v: exit code %d: %s", argv, process.ExitCode(), text)
	}
	return nil
}

// newAgent is nearlb.
func newAgent(l *lab.Lab, binary string, flags []string) (*proxy, error) {
	p := &proxy{name: "nearlb", limit: 3 * time.Minute}
	if err := p.addNode(l, "n1"); err != nil {
		return nil, err
	}
	start := func(kubeconfig string, flags []string) (*lab.Process, error) {
		return p.node.StartAgent(lab.AgentOptions{Command: []string{binary, "agent"}, Kubeconfig: kubeconfig, Args: flags})
	}
	p.start = func(kubeconfig string) (*lab.Process, error) { return start(kubeconfig, flags) }
	p.names = func(kubeconfig string) (*lab.Process, error) {
		return start(kubeconfig, slices.Concat(flags, []string{"--dns"}))
	}
	p.end = (*lab.Process).Stop
	p.wipe = func() error {
		return p.run("cleanup", binary, "cleanup", "--pin-path", p.node.PinPath(), "--lock-dir", l.LockDir())
	}
	p.published = func(pid int) (time.Time, string, bool) {
		s, err := agent.ReadStatus(l.LockDir(), p.node.PinPath())
		if err != nil || s.PID != pid || s.State != agent.Serving || s.Dirty > len(s.Failing) {
			return time.Time{}, "", false
		}
		if len(s.Failing) > 0 {
			return s.Written, fmt.Sprintf("%d Services fail: %s", len(s.Failing), s.Failing[0].Error), true
		}
		return s.LastSync, "", !s.LastSync.IsZero()
	}
	p.rest = func() time.Duration { return 20*time.Millisecond + rand.N(40*time.Millisecond) }
	return p, nil
}

// newKubeProxy is kube-proxy in mode nftables, as a cluster has it.
func newKubeProxy(l *lab.Lab, binary string) (*proxy, error) {
	p := &proxy{name: kubeProxyName, limit: 5 * time.Minute}
	if err := p.addNode(l, "n2"); err != nil {
		return nil, err
	}
	p.start = func(kubeconfig string) (*lab.Process, error) {
		return rig.StartKubeProxy(p.node, binary, kubeconfig)
	}
	p.end = (*lab.Process).Kill // it does nothing else on SIGTERM
	p.wipe = func() error { return p.run("nft", "nft", "flush", "ruleset") }
	// Its rules come in one transaction, which the probes see.
	p.published = func(int) (time.Time, string, bool) { return time.Time{}, "", true }
	// It waits a second between two transactions: who changes things more often measures that.
	p.rest = func() time.Duration { return time.Second + rand.N(500*time.Millisecond) }
	return p, nil
}
