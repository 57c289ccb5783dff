// SPDX-License-Identifier: Apache-2.0

// Command kernels runs tests on other kernels than this machine's: it boots Debian's kernel packages under qemu, with the test
// programs in an initial file system. `make test-kernels` runs all; one package's tests on one kernel:
//
//	go run ./tests/kernels -kernels 6.12 -run 'Instructions|Stack' pkg/bpf
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearlb/nearlb/tests/kernels/job"
)

// options are the command line's.
type options struct {
	kernels []string
	run     string
	each    time.Duration // for one package on one kernel
	verbose bool
	quick   bool // what is long on the oldest kernel alone, on one processor
	suites  []suite
}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ok, err := o.test(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	known := slices.Sorted(maps.Keys(kernels))
	set := flag.NewFlagSet("kernels", flag.ExitOnError)
	names := set.String("kernels", strings.Join(known, ","), "kernels to boot")
	set.StringVar(&o.run, "run", "", "tests to run, as go test's -run, instead of those of the list")
	set.DurationVar(&o.each, "timeout", time.Hour, "time for one package's tests on one kernel, by which a test that hangs is ended")
	set.BoolVar(&o.verbose, "v", false, "print what the tests print, as they do")
	set.BoolVar(&o.quick, "quick", false, "run what is long on the oldest kernel alone, and give each kernel one processor, as the gate does")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.kernels = strings.Split(*names, ",")
	for _, name := range o.kernels {
		if kernels[name] == nil {
			return o, fmt.Errorf("kernel %q: known ones are %s", name, strings.Join(known, ", "))
		}
	}
	o.suites = slices.Clone(suites)
	if set.NArg() > 0 {
		o.suites = nil
	}
	for _, pkg := range set.Args() {
		pkg = strings.TrimSuffix(strings.TrimPrefix(pkg, "./"), "/")
		i := slices.IndexFunc(suites, func(s suite) bool { return s.pkg == pkg })
		if i < 0 {
			o.suites = append(o.suites, suite{pkg: pkg})
		} else {
			o.suites = append(o.suites, suites[i])
		}
	}
	for i := range o.suites {
		if o.run != "" {
			o.suites[i] = suite{pkg: o.suites[i].pkg, only: o.run}
		}
	}
	if runtime.GOARCH != "amd64" {
		return o, errors.New("kernels: the packages that it knows are for amd64")
	}
	return o, nil
}

// test boots the kernels, all at once, and prints what became of the tests. ok: all is as it should be.
func (o options) test(ctx context.Context) (ok bool, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return false, fmt.Errorf("find the repository: %w", err)
	}
	repository := strings.TrimSpace(string(out))
	base, err := os.UserCacheDir()
	if err != nil {
		return false, err
	}
	dir, err := os.MkdirTemp("", "nearlb-kernels-")
	if err != nil {
		return false, err
	}
	programs, err := build(repository, dir, o.suites)
	if err != nil {
		return false, errors.Join(err, os.RemoveAll(dir))
	}
	results, wrong := make([][]*result, len(o.kernels)), make([]error, len(o.kernels))
	var all sync.WaitGroup
	for i, name := range o.kernels {
		all.Go(func() {
			results[i], wrong[i] = o.on(ctx, name, filepath.Join(base, "nearlb", "kernels"), repository, programs)
		})
	}
	all.Wait()
	ok = true
	for i, name := range o.kernels {
		if wrong[i] != nil {
			ok = false
			fmt.Printf("Linux %s: %v\n", name, wrong[i])
		}
	}
	ok = report(os.Stdout, slices.Concat(results...), o.of(o.oldest())) && ok
	if !ok {
		fmt.Println("logs:", dir)
		return false, nil
	}
	return true, os.RemoveAll(dir)
}

// on runs the suites on one kernel.
func (o options) on(ctx context.Context, name, cache, repository string, programs *programs) ([]*result, error) {
	started := time.Now()
	k, err := fetch(name, cache)
	if err != nil {
		return nil, err
	}
	image, err := k.image()
	if err != nil {
		return nil, err
	}
	found, err := k.modules()
	if err != nil {
		return nil, err
	}
	modules, err := found.order(wanted)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(programs.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	todo := o.of(name)
	files, runs := filepath.Join(dir, "files.cpio"), runs(todo, o.each)
	if err := programs.writeImage(files, repository, modules, todo, runs); err != nil {
		return nil, err
	}
	fmt.Printf("Linux %s: booting %s (made ready in %.0f s)\n", name, k.version, time.Since(started).Seconds())

	outputs, ends := make([]strings.Builder, len(runs)), make([]*job.Ended, len(runs))
	err = machine{image, files, o.processors()}.boot(ctx, dir, func(e job.Event) {
		outputs[e.Run].WriteString(e.Output)
		if o.verbose {
			fmt.Print(e.Output)
		}
		if e.Ended != nil {
			ends[e.Run] = e.Ended
			fmt.Printf("Linux %s: %s ended after %.0f s %s\n", name, todo[e.Run].pkg, e.Ended.Seconds, e.Ended.Status)
			if e.Ended.Status != "" && !o.verbose {
				fmt.Println(outputs[e.Run].String()) // now: the rest may take long
			}
		}
	})
	var results []*result
	for i, s := range todo {
		r, judged := judge(name, s.pkg, outputs[i].String(), ends[i])
		if judged != nil {
			return results, errors.Join(err, judged)
		}
		r.expect(skips, o.run == "")
		results = append(results, r)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, strings.ReplaceAll(s.pkg, "/", "_")+".log"), []byte(outputs[i].String()), 0o644))
	}
	return results, errors.Join(err, os.Remove(files))
}
