// SPDX-License-Identifier: Apache-2.0

// Command run has Kubernetes' own network tests run on a cluster of this machine, first with kube-proxy and then with nearlb in its place,
// and writes docs/conformance.md: `make e2e`. It ends with 2 where the machine cannot, and with 1 when a test that passes with kube-proxy
// does not pass with nearlb.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nearlb/nearlb/tests/cluster/kube"
	"github.com/nearlb/nearlb/tests/repository"
)

// options are the command's.
type options struct {
	suite
	proxies string // names with commas between them
	times   int
	dir     string // what each run said
	out     string // the table; "": none
	version string // of nearlb
}

func main() {
	var o options
	flag.StringVar(&o.focus, "focus", "", "an expression: the tests whose names match")
	flag.StringVar(&o.skip, "skip", "", "an expression: but for those whose names match")
	flag.IntVar(&o.procs, "procs", 6, "how many tests run at once")
	flag.StringVar(&o.proxies, "proxies", "kube-proxy,nearlb", "who serves Services, one after the other; what the others did before is taken from -dir, or else from -out, and so is all with none")
	flag.IntVar(&o.times, "times", 1, "how often each")
	flag.StringVar(&o.dir, "dir", "bin/e2e", "a directory for what each run said")
	flag.StringVar(&o.out, "out", "", "the file of the table")
	flag.StringVar(&o.version, "version", "unknown", "of nearlb")
	flag.Parse()
	if lacks := kube.Missing(); len(lacks) > 0 {
		fmt.Fprintf(os.Stderr, "this machine cannot run the cluster. It lacks:\n  %s\n", strings.Join(lacks, "\n  "))
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	if o.proxies == "none" {
		return o.judge()
	}
	root, err := repository.Root()
	if err != nil {
		return err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return err
	}
	fmt.Println("building Kubernetes' tests and images (minutes the first time, kept in the user's cache)")
	tarballs, err := images(root, o.dir)
	if err != nil {
		return err
	}
	for proxy := range strings.SplitSeq(o.proxies, ",") {
		if proxies[proxy] == nil {
			return fmt.Errorf("no proxy %q", proxy)
		}
		if err := os.RemoveAll(filepath.Join(o.dir, proxy)); err != nil {
			return err
		}
		for i := range o.times {
			if err := o.once(ctx, root, proxy, i+1, tarballs); err != nil {
				return err
			}
		}
	}
	return o.judge()
}

// once runs the tests in a cluster of their own.
func (o options) once(ctx context.Context, root, proxy string, number int, tarballs []string) (err error) {
	dir := filepath.Join(o.dir, proxy, fmt.Sprint(number))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fmt.Printf("--- %s, run %d of %d\n", proxy, number, o.times)
	c, err := start(ctx, root, dir, proxy, tarballs, os.Stdout)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	fmt.Printf("running the tests: %s has what they say\n", filepath.Join(dir, "tests.log"))
	specs, err := o.suite.run(ctx, c)
	c.keepLogs(ctx)
	if err != nil {
		return err
	}
	fmt.Println(count(specs))
	return ctx.Err()
}

// judge writes the table of what is in the directory, and tells of tests that pass with kube-proxy alone.
func (o options) judge() error {
	t := table{Date: time.Now().UTC().Format(time.DateOnly), Version: o.version, Focus: o.focus, Skip: o.skip}
	for _, proxy := range []string{"kube-proxy", "nearlb"} {
		reports, err := filepath.Glob(filepath.Join(o.dir, proxy, "*", "report.json"))
		if err != nil {
			return err
		}
		for _, report := range reports {
			specs, err := read(report)
			if err != nil {
				return err
			}
			t.add(proxy, specs)
		}
		if len(reports) == 0 && o.out != "" {
			if err := t.keep(proxy, o.out); err != nil {
				return err
			}
		}
	}
	if o.out != "" {
		if err := os.WriteFile(o.out, []byte(t.String()), 0o644); err != nil {
			return err
		}
	}
	if worse := t.worse(); len(worse) > 0 {
		return fmt.Errorf("these pass with kube-proxy, and not with nearlb:\n  %s", strings.Join(worse, "\n  "))
	}
	return nil
}
