// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/maps"
)

// yieldTo says for which packets the programs ask connection tracking. Without any rules of NAT they ask for none: nothing would
// translate a packet that they left to a remembered connection.
func yieldTo(rules kubeproxy.Rules) maps.Yield {
	yield := maps.YieldNothing
	if rules.NAT {
		yield |= maps.YieldOld
	}
	if rules.Any() || len(rules.Hidden) > 0 {
		yield |= maps.YieldNew
	}
	return yield
}

// rulesPause is the least time between two looks at the rules of NAT. Meanwhile nobody listens: kube-proxy's changes would cost
// this process as much as kube-proxy.
const rulesPause = 5 * time.Second

// followRules looks at kube-proxy's rules whenever they may have changed, until ctx ends.
func (r *running) followRules(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.awaitRules(ctx)
		if r.trouble("follow kube-proxy's rules", err) {
			r.daemon.log.Warn("follow kube-proxy's rules", "error", err)
		}
		pause(ctx, rulesPause)
	}
	return nil
}

// awaitRules looks, and returns when there may be something else to see.
func (r *running) awaitRules(ctx context.Context) error {
	news, err := kubeproxy.Listen()
	if err != nil {
		return err
	}
	defer news.Close()
	r.lookAtRules()
	return news.Wait(ctx)
}

// lookAtRules notes whether kube-proxy's rules are on this host: as long as they are, connections that it translates are left to
// it.
func (r *running) lookAtRules() {
	rules, err := kubeproxy.Look()
	if r.trouble("look for kube-proxy's rules", err) {
		r.daemon.log.Warn("look for kube-proxy's rules", "error", err)
	}
	if err != nil {
		return
	}
	if now := yieldTo(rules); r.setYield(now) {
		r.daemon.log.Info("looked for kube-proxy's rules", "subject", ruleState(rules))
		if r.configure() != nil {
			r.queue.AddRateLimited(task{kind: configure})
		}
	}
	blind := blindness(rules, r.objects.Conntrack(), r.daemon.options.ProxyName)
	if r.trouble("tell kube-proxy's connections", blind) {
		r.daemon.log.Warn("tell kube-proxy's connections", "problem", blind)
	}
	shared := SharedPorts(rules, r.objects.Conntrack(), r.daemon.options.SNATPorts)
	if r.trouble("ask connection tracking", shared) {
		r.daemon.log.Warn("ask connection tracking", "problem", shared)
	}
}

// SharedPorts describes what follows where the programs cannot query connection tracking (unknown says why) and the host translates
// connections: SNAT does not see which ports the host's masquerade has towards a backend. nil where it does, and where nothing is
// translated.
func SharedPorts(rules kubeproxy.Rules, unknown error, ports maps.PortRange) error {
	if unknown == nil || !rules.NAT && !rules.Any() || ports.Count() == 0 {
		return nil
	}
	return fmt.Errorf("%w: where the host masquerades connections to backends, one of them may have the port of --snat-ports (%s) that a client off the node gets "+
		"towards the same backend, whose answers go to that client then: leave these ports out of what masquerade rules may take (masquerade to :1024-%d), "+
		"or give the agent SYS_ADMIN as it starts, with the module nf_conntrack loaded", unknown, ports, ports.First-1)
}

// blindness describes what stops working when the programs cannot query connection tracking (unknown says why). A trial takes nothing from
// kube-proxy but the Services that were given to it by name.
func blindness(rules kubeproxy.Rules, unknown error, proxyName string) error {
	if !rules.Any() || unknown == nil || proxyName != "" {
		return nil
	}
	return fmt.Errorf("%w; as nearlb takes new connections, most of kube-proxy's break; restart the agent, which asks anew", unknown)
}

// setYield returns whether the value is another one than before.
func (l *loop) setYield(y maps.Yield) bool {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	if l.network.yield == y {
		return false
	}
	l.network.yield = y
	return true
}

func (l *loop) yield() maps.Yield {
	l.network.mu.Lock()
	defer l.network.mu.Unlock()
	return l.network.yield
}

// ruleState describes the rules for the log.
func ruleState(rules kubeproxy.Rules) string {
	switch {
	case rules.Any():
		return "kube-proxy's rules are here"
	case rules.NAT:
		return "rules of NAT are here, none of kube-proxy"
	}
	return "no rules of NAT are here"
}
