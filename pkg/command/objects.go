// SPDX-License-Identifier: Apache-2.0

package command

import (
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/decide"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// NodeFlags are the flags that say which node this is and what it answers on.
type NodeFlags struct {
	zone      string
	ips       []string
	nodePorts []string
	cidrs     []string
	infer     bool
	external  externalFlag
	proxy     string
}

// Add adds the flags to a command's.
func (f *NodeFlags) Add(flags *pflag.FlagSet) {
	flags.StringVar(&f.zone, "zone", "", "`zone` of this node, instead of the Node object's")
	flags.StringSliceVar(&f.ips, "node-ip", nil, "`address` of this node, instead of the Node object's (repeatable)")
	flags.StringSliceVar(&f.nodePorts, "nodeport-addresses", nil, "node addresses that answer NodePorts: `CIDR,...`, or primary (default: all)")
	flags.BoolVar(&f.infer, "infer-nodes", true, "endpoints without nodeName are on the node that has their address")
	f.external = externalFlag(lb.ExternalIPsAllowed)
	flags.Var(&f.external, "external-ips", "which externalIPs of Services are served: `deny|local|allow`; local: addresses that this host has on a device, no Node's, no ClusterIPs'")
	flags.StringVar(&f.proxy, "service-proxy-name", "", "serve only the Services that the label service-proxy-name gives to `name`, beside another proxy")
	flags.StringSliceVar(&f.cidrs, "service-cidr", nil, "`CIDR,...` of ClusterIPs: unallocated addresses in them are dropped")
}

// Config checks the values; the errors name the flag and what it wants. Node names are lower case, as kubelets spell them.
func (f *NodeFlags) Config(node string) (watch.NodeConfig, error) {
	cfg := watch.NodeConfig{Name: strings.ToLower(strings.TrimSpace(node)), Zone: f.zone, NodePortAddresses: f.nodePorts, KeepNodeless: !f.infer,
		ExternalIPs: lb.ExternalIPPolicy(f.external), ProxyName: f.proxy}
	for _, text := range f.ips {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return cfg, Usagef("--node-ip %q: want an IP address, as 192.0.2.1", text)
		}
		cfg.IPs = append(cfg.IPs, ip.Unmap())
	}
	if len(f.nodePorts) != 1 || f.nodePorts[0] != "primary" {
		if _, err := prefixes("nodeport-addresses", f.nodePorts); err != nil {
			return cfg, err
		}
	}
	var err error
	cfg.ServiceCIDRs, err = prefixes("service-cidr", f.cidrs)
	return cfg, err
}

func prefixes(flag string, texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, Usagef("--%s %q: want a CIDR, as 10.96.0.0/12", flag, text)
		}
		all = append(all, prefix.Masked())
	}
	return all, nil
}

// ObjectFlags are -f and the node, of the commands that work on objects from files.
type ObjectFlags struct {
	Files   []string
	node    string
	OffNode lb.OffNode // of Services that say nothing
	NodeFlags
}

// Add adds the flags to a command's.
func (f *ObjectFlags) Add(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&f.Files, "filename", "f", nil, "`FILE|DIR` with Services, EndpointSlices, Nodes; - is standard input (repeatable)")
	flags.StringVar(&f.node, "node", "", "`name` of this node, as in the slices' nodeName")
	f.NodeFlags.Add(flags)
}

// AddOffNode is for commands that say how clients off the node get to backends on other nodes.
func (f *ObjectFlags) AddOffNode(cmd *cobra.Command) {
	f.OffNode = lb.OffNodeSNAT
	way := ModeFlag[lb.OffNode]{Mode: &f.OffNode, All: lb.OffNodes()}
	cmd.Flags().Var(way, "off-node", "the agent's: how clients off the node get to backends on other nodes, `snat|carry|dsr`")
	Complete(cmd, "off-node", way.Words)
}

// Load reads the objects once. Every error of it is bad input. Warnings go to warn, one line each.
func (f *ObjectFlags) Load(in io.Reader, warn func(string)) (watch.Loaded, error) {
	for _, file := range f.Files {
		if file == "" {
			return nil, Usagef("--filename \"\": want a file, a directory, or - for standard input")
		}
	}
	cfg, err := f.Config(f.node)
	if err != nil {
		return nil, err
	}
	if cfg.Name == "" {
		warn("no --node: no endpoint is on this node")
	}
	source, err := watch.Load(f.Files, in, cfg, warn)
	if err != nil {
		return nil, UsageError{err}
	}
	return source, nil
}

// Decisions are those for every Service of a source, by name.
func Decisions(source watch.Source) []lb.Decision {
	var all []lb.Decision
	for _, name := range source.Services() {
		if input, ok := source.Input(name); ok {
			all = append(all, decide.Decide(input, source.Node()))
		}
	}
	return all
}

// externalFlag checks the policy as it is set.
type externalFlag lb.ExternalIPPolicy

func (f *externalFlag) Type() string   { return "policy" }
func (f *externalFlag) String() string { return string(*f) }

func (f *externalFlag) Set(text string) error {
	switch policy := lb.ExternalIPPolicy(strings.ToLower(text)); policy {
	case lb.ExternalIPsDenied, lb.ExternalIPsLocal, lb.ExternalIPsAllowed:
		*f = externalFlag(policy)
		return nil
	}
	return Usagef("want deny, local or allow")
}
