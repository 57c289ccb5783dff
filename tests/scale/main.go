// SPDX-License-Identifier: Apache-2.0

// Command scale measures what an agent costs at many Services, and kube-proxy beside it, and prints the table that docs/performance.md shows.
// `make scale` runs it. Each proxy has a node (network namespaces with real pods) and an API server in memory of its own, one
// after the other, so that nobody takes the other's processor.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// options are what the flags say.
type options struct {
	nearlb, kubeProxy string
	flags             []string
	sizes             []size
	rounds, starts    int
	rate, createUpTo  int
	churn             int
	idle, longest     time.Duration
}

func main() {
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	var sizes, flags string
	flag.StringVar(&o.nearlb, "nearlb", "bin/nearlb", "`program` to measure")
	flag.StringVar(&o.kubeProxy, "kube-proxy", "", "`program` to measure beside it, whose first argument is kube-proxy; none: nearlb alone")
	flag.StringVar(&flags, "flags", "", "further `flags` of the agent, separated by spaces")
	flag.StringVar(&sizes, "sizes", "1000x10,10000x10,50000x5", "Services x endpoints of each, separated by commas")
	flag.IntVar(&o.rounds, "rounds", 100, "changes of endpoints of each kind")
	flag.IntVar(&o.starts, "starts", 3, "starts of each kind")
	flag.IntVar(&o.rate, "rate", 250, "Services that are created in a second")
	flag.IntVar(&o.createUpTo, "create-up-to", 10_000, "most Services for which their creation one by one is measured")
	flag.IntVar(&o.churn, "churn", 0, "changes to make in the place of measurements, at the first of the sizes: fail if memory, descriptors or tables grow")
	flag.DurationVar(&o.idle, "idle", 30*time.Second, "how long nothing happens")
	flag.DurationVar(&o.longest, "longest", time.Minute, "how long changes or starts of a kind are repeated if each takes long")
	flag.Parse()
	for _, program := range []*string{&o.nearlb, &o.kubeProxy} { // they run in other directories
		if *program != "" {
			if *program, err = filepath.Abs(*program); err != nil {
				return o, err
			}
		}
	}
	o.flags = strings.Fields(flags)
	for text := range strings.SplitSeq(sizes, ",") {
		var s size
		if _, err := fmt.Sscanf(text, "%dx%d", &s.services, &s.endpoints); err != nil || s.services < watchedServices || s.endpoints < 3 || s.endpoints > 250 {
			return o, fmt.Errorf("-sizes %q: want SERVICESxENDPOINTS, as 10000x10: at least %d Services, and 3 to 250 endpoints", text, watchedServices)
		}
		o.sizes = append(o.sizes, s)
	}
	if o.rounds < 1 || o.starts < 1 || o.rate < 1 {
		return o, errors.New("-rounds, -starts, -rate: want 1 or more")
	}
	return o, nil
}

func (o options) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// announce says beforehand what is done and about how long it takes.
func (o options) announce() {
	if o.churn > 0 {
		o.say("makes %d changes to %v Services x endpoints: about %d minutes", o.churn, o.sizes[0], 2+o.churn/churnRate/60+churnRests/6)
		return
	}
	names, minutes := "nearlb", 0.0
	for _, s := range o.sizes {
		each := o.idle.Minutes() + settling.Minutes() + float64(o.rounds)/150 + float64(o.starts*s.services)/300_000
		if s.services <= o.createUpTo {
			each += float64(s.services) / float64(o.rate) / 60
		}
		minutes += each
		if o.kubeProxy != "" {
			minutes += each + 2*o.longest.Minutes() + float64(o.starts*s.services)/15_000
		}
	}
	if o.kubeProxy != "" {
		names = "nearlb and kube-proxy, one after the other,"
	}
	o.say("measures %s at %v Services x endpoints: about %.0f minutes", names, o.sizes, minutes+1)
}

func run(o options) (err error) {
	o.announce()
	l, err := lab.New(lab.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ended := context.AfterFunc(interrupted, func() { _ = l.Close(); os.Exit(130) })
	defer ended() // before stop, which ends the context

	control, err := l.AddOutside(lab.OutsideOptions{Name: "control"})
	if err != nil {
		return err
	}
	far, err := addFar(l)
	if err != nil {
		return err
	}
	proxies, err := o.proxies(l)
	if err != nil {
		return err
	}
	begin := func(s size, p *proxy) (*course, error) {
		c := &course{options: o, proxy: p, lab: l, world: newWorld(s, p.node.Name, []netip.Addr{p.node.V4, p.node.V6}, p.near, far)}
		return c, c.serve(control)
	}
	if o.churn > 0 {
		c, err := begin(o.sizes[0], proxies[len(proxies)-1])
		if err != nil {
			return err
		}
		return c.churn(o.churn)
	}
	var columns []column
	for _, s := range o.sizes {
		for _, p := range proxies {
			c, err := begin(s, p)
			if err != nil {
				return err
			}
			if err := c.run(); err != nil {
				return err
			}
			if c.figures.failed > 0 {
				o.say("%s, %s: %d connections got no answer while endpoints changed", s, p.name, c.figures.failed)
			}
			columns = append(columns, column{s, p.name, c.figures})
			for _, r := range rows { // at once, as a run is long
				o.say("%s, %s: %s: %s", s, p.name, r.title, r.cell(columns[len(columns)-1], columns))
			}
		}
	}
	return markdown(os.Stdout, o, columns)
}

func (o options) proxies(l *lab.Lab) (all []*proxy, err error) {
	var p *proxy
	if o.kubeProxy != "" {
		if p, err = newKubeProxy(l, o.kubeProxy); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if p, err = newAgent(l, o.nearlb, o.flags); err != nil {
		return nil, err
	}
	return append(all, p), nil
}

// addFar makes a host beyond the router that has the addresses of all endpoints elsewhere that answer.
func addFar(l *lab.Lab) (addresses []netip.Addr, err error) {
	host, err := l.AddOutside(lab.OutsideOptions{Name: farServer})
	if err != nil {
		return nil, err
	}
	for i := range 250 {
		addresses = append(addresses, netip.AddrFrom4([4]byte{10, 200, 0, byte(i + 1)}))
	}
	if err := errors.Join(host.Own(addresses...), host.Attract(addresses...)); err != nil {
		return nil, err
	}
	_, err = host.Serve(targetPort, addresses...)
	return addresses, err
}
