// SPDX-License-Identifier: Apache-2.0

package script

import (
	"flag"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/watch"
)

// tables publishes what the node decides about the objects, in their order and then once more in the reverse order, and
// prints the dump, which must be the same both times. It returns an exit status.
func tables(ts *testscript.TestScript, args []string) int {
	return asProcess(ts, func() int {
		if err := printTables(args, ts.Getenv(kernelTables) != "", ts.Stdout(), ts.Stderr()); err != nil {
			fmt.Fprintln(ts.Stderr(), "tables:", err)
			return 1
		}
		return 0
	})
}

func printTables(args []string, inKernel bool, out, errs io.Writer) error {
	var pinPath string
	source, err := load(args, &pinPath, errs)
	if err != nil {
		return err
	}
	if pinPath != "" {
		return published(kernels, pinPath, source, out)
	}
	var fakes, others strings.Builder
	if err := published(fake, "", source, &fakes); err != nil {
		return err
	}
	if inKernel {
		if err := published(kernels, "", source, &others); err != nil {
			return err
		}
		if fakes.String() != others.String() {
			return fmt.Errorf("the fake tables' dump:\n%sthe kernel's:\n%s", &fakes, &others)
		}
	}
	_, err = io.WriteString(out, fakes.String())
	return err
}

// published publishes into tables and writes their dump.
func published(open opener, pinPath string, source watch.Source, out io.Writer) error {
	target, closeTarget, err := open(pinPath)
	if err != nil {
		return err
	}
	defer closeTarget()
	if err := target.Configure(maps.Config{ServiceCIDRs: source.ServiceCIDRs()}); err != nil {
		return err
	}
	names := source.Services()
	if err := apply(target, source, names); err != nil {
		return err
	}
	var first, second strings.Builder
	if err := target.Dump(&first); err != nil {
		return err
	}
	fmt.Fprint(out, first.String())
	slices.Reverse(names)
	if err := apply(target, source, names); err != nil {
		return err
	}
	if err := target.Dump(&second); err != nil {
		return err
	}
	if first.String() != second.String() {
		return fmt.Errorf("publishing the same once more changed the dump:\n%s", second.String())
	}
	return nil
}

func load(args []string, pinPath *string, errs io.Writer) (watch.Source, error) {
	var files, ips, cidrs, nodePorts list
	var cfg watch.NodeConfig
	flags := flag.NewFlagSet("tables", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Var(&files, "f", "objects")
	flags.StringVar(&cfg.Name, "node", "", "this node")
	flags.StringVar(pinPath, "pin", "", "pin the kernel's tables here")
	flags.StringVar(&cfg.Zone, "zone", "", "its zone")
	flags.Var(&ips, "node-ip", "its addresses")
	flags.Var(&cidrs, "service-cidr", "ranges of ClusterIPs")
	flags.Var(&nodePorts, "nodeport-addresses", "what answers NodePorts")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	for _, text := range ips {
		cfg.IPs = append(cfg.IPs, netip.MustParseAddr(text))
	}
	for _, text := range cidrs {
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.MustParsePrefix(text))
	}
	cfg.NodePortAddresses = nodePorts
	return watch.Load(files, strings.NewReader(""), cfg, func(text string) { fmt.Fprintln(errs, "warning:", text) })
}

// list is a flag that may come several times.
type list []string

func (l *list) String() string        { return strings.Join(*l, ",") }
func (l *list) Set(text string) error { *l = append(*l, text); return nil }

// opener gives tables, and what closes them.
type opener func(pinPath string) (*maps.Tables, func(), error)

var sizes = bpf.Sizes{Slots: 1 << 20, FlowSets: 16, Affinity: 64, Backends: 4096, Services: 1024, Records: 1024, Frontends: 1024}

func fake(string) (*maps.Tables, func(), error) {
	target := maps.NewFake(sizes)
	return target, func() { target.Close() }, nil
}

func kernels(pinPath string) (*maps.Tables, func(), error) {
	if pinPath == "" { // nobody runs a packet: the programs would take the verifier a second each time
		private, err := bpf.NewMaps(sizes)
		if err != nil {
			return nil, nil, err
		}
		return opened(private, private)
	}
	objects, err := bpf.Load(bpf.Options{Sizes: sizes, PinPath: pinPath, Reuse: true})
	if err != nil {
		return nil, nil, err
	}
	return opened(&objects.NearlbMaps, objects)
}

// opened maps tables. What closes them ends that first.
func opened(tables *bpf.NearlbMaps, all io.Closer) (*maps.Tables, func(), error) {
	target, err := maps.Open(tables)
	if err != nil {
		all.Close()
		return nil, nil, err
	}
	return target, func() { target.Close(); all.Close() }, nil
}

func apply(target *maps.Tables, source watch.Source, names []lb.ServiceName) error {
	for _, name := range names {
		input, ok := source.Input(name)
		if !ok {
			continue
		}
		if _, err := target.Apply(decide.Decide(input, source.Node())); err != nil {
			return err
		}
	}
	return nil
}
