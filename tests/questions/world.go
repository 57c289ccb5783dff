// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/lab"
)

// world is a cluster of three nodes: a server of each Service and a client on each.
type world struct {
	program  string
	lab      *lab.Lab
	nodes    []*lab.Node
	agents   []*lab.Process
	clients  []*lab.Pod
	servers  map[string][]*lab.Pod
	ports    map[string][]*lab.Server // that the servers listen on
	commands int

	stop    context.CancelFunc
	traffic sync.WaitGroup

	endFlood func() // of a client that opens connections as fast as it can
}

// services are 10.96.0.10 and those after it.
var services = []string{"web", "api", "cart"}

func newWorld(program string) (*world, error) {
	l, err := lab.New(lab.Options{})
	if err != nil {
		return nil, err
	}
	w := &world{program: program, lab: l, servers: map[string][]*lab.Pod{}, ports: map[string][]*lab.Server{}, stop: func() {}}
	if err := w.populate(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) close() error {
	w.stop()
	w.traffic.Wait()
	return w.lab.Close()
}

func (w *world) populate() error {
	var objects []lab.Object
	for i, zone := range []string{"a", "a", "b"} {
		n, err := w.lab.AddNode(lab.NodeOptions{Name: fmt.Sprintf("n%d", i+1), Zone: zone})
		if err != nil {
			return err
		}
		w.nodes, objects = append(w.nodes, n), append(objects, n.Object())
		if err := w.addPods(n, i+1); err != nil {
			return err
		}
	}
	if err := w.lab.Manifests.Write("nodes.yaml", objects...); err != nil {
		return err
	}
	for _, name := range services {
		if err := w.publish(name, nil); err != nil {
			return err
		}
	}
	for i := range w.nodes {
		if err := w.startAgent(i); err != nil {
			return err
		}
	}
	return w.keepAsking()
}

func (w *world) addPods(n *lab.Node, number int) error {
	for _, name := range services {
		pod, err := n.AddPod(fmt.Sprintf("%s-%d", name, number))
		if err != nil {
			return err
		}
		listening, err := pod.Serve(8080)
		if err != nil {
			return err
		}
		w.servers[name], w.ports[name] = append(w.servers[name], pod), append(w.ports[name], listening)
	}
	client, err := n.AddPod(fmt.Sprintf("client-%d", number))
	w.clients = append(w.clients, client)
	return err
}

// startAgent waits until a node's agent serves, or says what it cannot serve.
func (w *world) startAgent(i int, flags ...string) error {
	n := w.nodes[i]
	p, err := n.StartAgent(lab.AgentOptions{Command: []string{w.program, "agent"}, Args: flags})
	if err != nil {
		return err
	}
	if len(w.agents) == i {
		w.agents = append(w.agents, nil)
	}
	w.agents[i] = p
	return lab.Await(patience, func() bool {
		s, err := agent.ReadStatus(w.lab.LockDir(), n.PinPath())
		return err == nil && s.PID == p.PID() && (s.State == agent.Serving || len(s.Failing) > 0)
	})
}

func address(service string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + slices.Index(services, service))})
}

// publish writes a Service with its endpoints; change makes them otherwise.
func (w *world) publish(name string, change func(*lab.Service, *lab.Slices)) error {
	s := lab.Service{Name: name, ClusterIPs: []netip.Addr{address(name)}, Ports: []lab.Port{{Name: "http", Protocol: "TCP", Port: 80}}}
	of := lab.Slices{Service: name, Ports: []lab.Port{{Name: "http", Protocol: "TCP", Port: 8080}}}
	for _, pod := range w.servers[name] {
		of.Endpoints = append(of.Endpoints, lab.Endpoint{Pod: pod})
	}
	if change != nil {
		change(&s, &of)
	}
	return w.lab.Manifests.Write(name+".yaml", append(of.Objects(), s)...)
}

// ask makes connections of the first node's client, one after the other, and asks each server who it is. How they end is what the questions
// are about.
func (w *world) ask(service string, times int) {
	for range times {
		_, _ = w.clients[0].Ask(context.Background(), "tcp", netip.AddrPortFrom(address(service), 80), lab.DialOptions{Patience: 2 * time.Second})
	}
}

// keepAsking has every client keep a connection to two of the Services and make new ones, until the end.
func (w *world) keepAsking() error {
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	for _, client := range w.clients {
		for _, name := range []string{"web", "cart"} {
			to := netip.AddrPortFrom(address(name), 80)
			kept, err := client.Dial(ctx, "tcp", to, lab.DialOptions{})
			if err != nil {
				return err
			}
			w.traffic.Go(func() {
				defer kept.Close()
				for ctx.Err() == nil {
					_, _ = kept.Who()
					_, _ = client.Ask(ctx, "tcp", to, lab.DialOptions{Patience: 2 * time.Second})
					select {
					case <-ctx.Done():
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
		}
	}
	return nil
}
