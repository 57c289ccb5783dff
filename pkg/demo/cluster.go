// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/nearlb/nearlb/pkg/lab"
)

const (
	serviceName = "web"
	servicePort = 80
	targetPort  = 8080
	clusterIP4  = "10.96.0.10"
	clusterIP6  = "fd96::10"
)

// demo is a cluster of three nodes, each with a server and a client pod.
type demo struct {
	options Options
	lab     *lab.Lab
	nodes   []*lab.Node
	servers []*lab.Pod // one a node: web-1 on n1, ...
	clients []*lab.Pod
	agents  []*lab.Process
	steps   []step
	watch   *watch
	report  report

	mu      sync.Mutex // guards what follows
	ready   []bool     // by server
	running Result
	results []Result
}

// build makes the cluster and starts the agents, before any object but the Nodes is there.
func build(options Options) (*demo, error) {
	l, err := lab.New(lab.Options{})
	if err != nil {
		return nil, err
	}
	d := &demo{options: options, lab: l, report: newReport(options)}
	if err := d.populate(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	d.steps = d.script()
	d.watch = newWatch(d)
	return d, nil
}

func (d *demo) populate() error {
	var objects []lab.Object
	for i, zone := range []string{"a", "a", "b"} {
		n, err := d.lab.AddNode(lab.NodeOptions{Name: fmt.Sprintf("n%d", i+1), Zone: zone})
		if err != nil {
			return err
		}
		if err := d.addPods(n, i+1); err != nil {
			return err
		}
		d.nodes = append(d.nodes, n)
		objects = append(objects, n.Object())
	}
	if err := d.lab.Manifests.Write("nodes.yaml", objects...); err != nil {
		return err
	}
	for _, n := range d.nodes {
		agent, err := n.StartAgent(d.options.Agent)
		if err != nil {
			return err
		}
		d.agents = append(d.agents, agent)
	}
	d.ready = make([]bool, len(d.servers))
	return nil
}

func (d *demo) addPods(n *lab.Node, number int) error {
	server, err := n.AddPod(fmt.Sprintf("web-%d", number))
	if err != nil {
		return err
	}
	if _, err := server.Serve(targetPort); err != nil {
		return err
	}
	client, err := n.AddPod(fmt.Sprintf("client-%d", number))
	if err != nil {
		return err
	}
	d.servers, d.clients = append(d.servers, server), append(d.clients, client)
	return nil
}

// setReady writes the Service and its slices with these servers ready and the others not.
func (d *demo) setReady(ready ...bool) func(context.Context) error {
	return func(context.Context) error {
		d.mu.Lock()
		d.ready = ready
		d.mu.Unlock()
		slices := lab.Slices{Service: serviceName, Ports: ports(targetPort), SameNode: true}
		for i, pod := range d.servers {
			slices.Endpoints = append(slices.Endpoints, lab.Endpoint{Pod: pod, NotReady: !ready[i], NotServing: !ready[i]})
		}
		service := lab.Service{Name: serviceName, ClusterIPs: clusterIPs(), Ports: ports(servicePort)}
		return d.lab.Manifests.Write("web.yaml", append(slices.Objects(), service)...)
	}
}

func clusterIPs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(clusterIP4), netip.MustParseAddr(clusterIP6)}
}

func ports(number uint16) []lab.Port {
	return []lab.Port{{Name: "tcp", Protocol: "TCP", Port: number}, {Name: "udp", Protocol: "UDP", Port: number}}
}

// setRunning and setDone tell the live table how far the demo is.
func (d *demo) setRunning(r Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = r
}

func (d *demo) setDone(r Result) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running = Result{}
	d.results = append(d.results, r)
}
