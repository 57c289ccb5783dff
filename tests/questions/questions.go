// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearlb/nearlb/pkg/lab"
)

// question is one that an operator has, and the fault that raises it.
type question struct {
	asked    string
	fault    string
	plant    func(*world) error
	commands []string
	wants    string // in what each of them prints
	mend     func(*world) error
}

func questions() []question {
	return []question{
		{asked: "My pod's connections to X sometimes fail", fault: "the process of the pod web-2 has ended, and Kubernetes still calls the pod ready", plant: (*world).endServer,
			commands: []string{"why 10.244.1.13 web", "backends web"}, wants: "web", mend: (*world).serveAgain},
		{asked: "I wrote an annotation, and nothing happens", fault: "the annotation of the Service cart is misspelled", plant: func(w *world) error {
			return w.publish("cart", func(s *lab.Service, _ *lab.Slices) {
				s.Annotations = map[string]string{"nearlb.io/local-falback": "true"}
			})
		}, commands: []string{"why 10.244.1.13 cart", "explain wrong-annotation"}, wants: "annotation", mend: func(w *world) error { return w.publish("cart", nil) }},
		{asked: "Which annotations are in force", fault: "one annotation of the Service cart is misspelled, the other is not", plant: func(w *world) error {
			return w.publish("cart", func(s *lab.Service, _ *lab.Slices) {
				s.Annotations = map[string]string{"nearlb.io/slow-strat": "30s", "nearlb.io/retry-refused": "true"}
			})
		}, commands: []string{"services cart -o wide"}, wants: "slow-strat", mend: func(w *world) error { return w.publish("cart", nil) }},
		{asked: "What is dropped, for whom", fault: "no endpoint of the Service api is ready, and the client on this node goes on asking", plant: func(w *world) error {
			err := w.publish("api", func(_ *lab.Service, of *lab.Slices) {
				for i := range of.Endpoints {
					of.Endpoints[i].NotReady, of.Endpoints[i].NotServing = true, true
				}
			})
			return errors.Join(err, w.refused())
		}, commands: []string{"drops --service api", "why 10.244.1.13 api"}, wants: "no", mend: func(w *world) error { return w.publish("api", nil) }},
		{asked: "What goes on now", fault: "one client opens connections as fast as it can", plant: (*world).flood,
			commands: []string{"top services --once", "top clients --once"}, wants: "NEW/S", mend: func(w *world) error { w.endFlood(); return nil }},
		{asked: "Who talks to this, how much", fault: "none", plant: none, commands: []string{"flows --service web --group-by client", "flows --service web --state open --sort-by idleSeconds", "flows --service web --bytes"}, wants: "10.244."},
		{asked: "What changed", fault: "a rolling update has just exchanged a pod of api", plant: func(w *world) error {
			return w.publish("api", func(_ *lab.Service, of *lab.Slices) { of.Endpoints = of.Endpoints[1:] })
		}, commands: []string{"changes --service api"}, wants: "api", mend: func(w *world) error { return w.publish("api", nil) }},
		{asked: "Which Services cross zones, why", fault: "the Services say nothing of zones", plant: none, commands: []string{"zones"}, wants: "cart"},
		{asked: "One backend is slow or dead", fault: "the pod cart-3 has lost its network, and Kubernetes still calls it ready", plant: (*world).unplug,
			commands: []string{"backends cart", "why 10.244.1.13 cart"}, wants: "ejected"},
		{asked: "Nobody follows changes", fault: "the agent of this node was killed", plant: func(w *world) error { return w.agents[0].Kill() },
			commands: []string{"status", "services web"}, wants: "agent"},
		{asked: "A table is full", fault: "the tables were removed, and the agent that starts anew may have eight backends at the most", plant: func(w *world) error {
			if printed, status, err := w.run(80, "cleanup --pin-path "+w.nodes[0].PinPath()+" --lock-dir "+w.lab.LockDir()); err != nil || status != 0 {
				return fmt.Errorf("nearlb cleanup: %s, %w", printed, err)
			}
			return w.startAgent(0, "--size-backends=8")
		}, commands: []string{"status"}, wants: "full"},
	}
}

func none(*world) error { return nil }

// endServer ends what listens on the second pod of web.
func (w *world) endServer() error {
	if err := w.ports["web"][1].Close(); err != nil {
		return err
	}
	w.ask("web", 8)
	return nil
}

func (w *world) serveAgain() (err error) {
	w.ports["web"][1], err = w.servers["web"][1].Serve(8080)
	return err
}

// refused asks until the client is refused: the Service has just lost its endpoints.
func (w *world) refused() error {
	times := 0
	return lab.Await(patience, func() bool {
		_, err := w.clients[0].Ask(context.Background(), "tcp", netip.AddrPortFrom(address("api"), 80), lab.DialOptions{})
		if err != nil {
			times++
		}
		return times == 4
	})
}

func (w *world) flood() error {
	ctx, stop := context.WithCancel(context.Background())
	var flooding sync.WaitGroup
	w.endFlood = func() {
		stop()
		flooding.Wait()
	}
	to := netip.AddrPortFrom(address("api"), 80)
	for range 4 {
		flooding.Go(func() {
			for ctx.Err() == nil {
				_, _ = w.clients[0].Ask(ctx, "tcp", to, lab.DialOptions{Patience: 2 * time.Second})
			}
		})
	}
	return nil
}

// unplug has a pod's answers get lost, and asks its Service until it is left out.
func (w *world) unplug() error {
	pod := w.servers["cart"][2]
	err := pod.Do(func() error {
		_, all, err := net.ParseCIDR("0.0.0.0/0")
		return errors.Join(err, netlink.RouteReplace(&netlink.Route{Type: unix.RTN_BLACKHOLE, Dst: all}))
	})
	if err != nil {
		return err
	}
	var asking sync.WaitGroup
	for range 12 {
		asking.Go(func() { w.ask("cart", 4) })
	}
	asking.Wait()
	return nil
}
