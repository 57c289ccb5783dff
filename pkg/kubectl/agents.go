// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
)

// agent is a node, with the pod that runs nearlb there, or why none can be asked.
type agent struct {
	node string
	pod  *pod
	lack error
}

// find lists the nodes that are asked, by name.
func (c *cluster) find(ctx context.Context, r *request) ([]agent, error) {
	pods, err := list[pod](ctx, c, "api/v1/namespaces/"+r.agents+"/pods", url.Values{"labelSelector": {r.selector}})
	if err != nil {
		return nil, fmt.Errorf("list pods of namespace %s: %w", r.agents, err)
	}
	byNode := map[string]*agent{}
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName == "" {
			continue
		}
		p.Metadata.Namespace = r.agents
		a := agent{node: p.Spec.NodeName, pod: p, lack: p.unable(r.container)}
		if known := byNode[a.node]; known == nil || known.lack != nil && a.lack == nil {
			byNode[a.node] = &a
		}
	}
	if len(byNode) == 0 {
		return nil, fmt.Errorf("no pod of namespace %s has the labels %s: name them with --agent-namespace and --selector", r.agents, r.selector)
	}
	nodes, err := list[node](ctx, c, "api/v1/nodes", url.Values{})
	if err != nil && !errors.Is(err, errForbidden) { // who may not list Nodes is told of those that have pods
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for _, n := range nodes {
		if name := n.Metadata.Name; byNode[name] == nil {
			byNode[name] = &agent{node: name, lack: errors.New("no pod of nearlb is there")}
		}
	}
	var all []agent
	if len(r.nodes) > 0 {
		for _, name := range r.nodes {
			a := byNode[name]
			if a == nil {
				return nil, usagef("--node %s: there is no such node", name)
			}
			all = append(all, *a)
		}
	} else {
		for _, a := range byNode {
			all = append(all, *a)
		}
	}
	slices.SortFunc(all, func(a, b agent) int { return cmp.Compare(a.node, b.node) })
	return slices.CompactFunc(all, func(a, b agent) bool { return a.node == b.node }), nil
}

// unable says why a pod cannot be asked; nil: it can.
func (p *pod) unable(container string) error {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == container && c.State.Running != nil {
			return nil
		}
		if c.Name == container && c.State.Waiting != nil {
			return fmt.Errorf("pod %s waits: %s", p.Metadata.Name, cmp.Or(c.State.Waiting.Reason, "no reason is given"))
		}
	}
	if p.Status.Phase == "Running" && len(p.Status.ContainerStatuses) == 0 {
		return nil
	}
	return fmt.Errorf("container %s of pod %s does not run (%s)", container, p.Metadata.Name, cmp.Or(p.Status.Phase, "phase unknown"))
}
