// SPDX-License-Identifier: Apache-2.0

// Command failover measures what clients notice while backends and nodes die, with nearlb and with kube-proxy, and writes docs/failover.md with
// its picture. `make failover` runs it. Every scene has a cluster of its own out of network namespaces: a node of clients, on which the proxy
// runs as a process, and nodes of servers; the objects come from an API server in memory.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"time"

	"github.com/nearlb/nearlb/pkg/lab"
)

// options are what the flags say.
type options struct {
	nearlb, kubeProxy string
	version, out      string
	only              *regexp.Regexp // "": all, and the page is written
	quick             int            // every time of a scene is divided by this
}

func main() {
	o, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

func parse() (o options, err error) {
	var chosen string
	flag.StringVar(&o.nearlb, "nearlb", "bin/nearlb", "`program` to measure")
	flag.StringVar(&o.kubeProxy, "kube-proxy", "", "`program` to measure beside it, whose first argument is kube-proxy; none: nearlb alone")
	flag.StringVar(&o.version, "version", "unknown", "of nearlb, for the page")
	flag.StringVar(&o.out, "out", "", "`directory` of failover.md and its pictures; none: the table is printed alone")
	flag.StringVar(&chosen, "scenes", "", "`expression` for the names of the scenes to play; none: all")
	flag.IntVar(&o.quick, "quick", 1, "divide every time by this, to try the command itself")
	flag.Parse()
	for _, program := range []*string{&o.nearlb, &o.kubeProxy} { // they run in other directories
		if *program != "" {
			if *program, err = filepath.Abs(*program); err != nil {
				return o, err
			}
		}
	}
	if o.quick < 1 {
		return o, errors.New("-quick: want 1 or more")
	}
	if o.out != "" && (chosen != "" || o.quick > 1) {
		return o, errors.New("-out: the page has all scenes at their full length: want neither -scenes nor -quick")
	}
	o.only, err = regexp.Compile(chosen)
	return o, err
}

func (o options) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// spans is a time of a scene.
func (o options) spans(d time.Duration) time.Duration { return d / time.Duration(o.quick) }

func run(o options) error {
	proxies := []proxy{{name: "kube-proxy", start: startKubeProxy}, {name: "nearlb", start: startNearlb}}
	if o.kubeProxy == "" {
		proxies = proxies[1:]
	}
	var played []outcome
	for _, s := range o.scenes() {
		if !o.only.MatchString(s.name) {
			continue
		}
		done := outcome{scene: s, figures: map[string]figures{}}
		for _, p := range proxies {
			if s.nearlbAlone && p.name != "nearlb" {
				continue
			}
			o.say("%s, %s", s.name, p.name)
			f, err := o.play(s, p)
			if err != nil {
				return fmt.Errorf("%s with %s: %w", s.name, p.name, err)
			}
			done.figures[p.name] = f
			o.say("%s, %s: slow connects by the second in which they began: %v", s.name, p.name, f.slowSeconds())
			for _, r := range s.rows {
				o.say("%s, %s: %s: %s", s.name, p.name, r.title, r.text(f))
			}
		}
		played = append(played, done)
	}
	fmt.Print(table(played))
	if o.out == "" {
		return nil
	}
	return write(o, played)
}

// play has a scene in a cluster that is made for it.
func (o options) play(s scene, p proxy) (f figures, err error) {
	l, err := lab.New(lab.Options{})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ended := context.AfterFunc(interrupted, func() { _ = l.Close(); os.Exit(130) })
	defer ended() // before stop, which ends the context
	if s.heartbeats && p.name == "nearlb" {
		p.start = startHearing
	}
	w, err := newWorld(o, l, p)
	if err != nil {
		return f, err
	}
	defer w.close()
	if err := w.awaitServed(); err != nil {
		return f, errors.Join(err, w.said())
	}
	return s.play(w)
}
