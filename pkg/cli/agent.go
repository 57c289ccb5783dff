// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/ui"
)

func agentCommand(start func(context.Context, agent.Options) error) *cobra.Command {
	options := agent.DefaultOptions()
	var node command.NodeFlags
	var logs logFlags
	var page bool
	var configDir string
	cmd := &cobra.Command{
		Use:   "agent --node-name NAME [--manifests DIR | --kubeconfig FILE]",
		Short: "Run the daemon of a node",
		Long: `Follows Services and EndpointSlices, in the API server or in a directory, and
publishes what this node does with them into the kernel. When it ends, for
whatever reason, traffic goes on.

Each flag is also read from the environment: --node-name from
NEARLB_NODE_NAME, and so on, and from a file of its name in --config-dir. A flag
on the command line wins, then the environment.`,
		Example: `  nearlb agent --node-name n1                          in a cluster
  nearlb agent --node-name n1 --manifests /etc/nearlb  without one`,
		Args: command.NoArguments,
	}
	flags := cmd.Flags()
	addAgentFlags(flags, &options)
	flags.StringVar(&configDir, configDirFlag, "", "`directory` with values of flags in files of their names, as a ConfigMap is mounted; what changes there wants a restart, which the status says")
	flags.BoolVar(&page, "ui", false, "serve nearlb ui's page below /ui/ of --metrics-address, which must be a loopback address")
	names := addNameFlags(cmd, &options.Names)
	addSizeFlags(flags, &options)
	node.Add(flags)
	logs.add(flags)
	method := attachFlag{&options.AttachMethod}
	flags.Var(method, "attach", "how programs are attached: `tcx|clsact` (default: tcx where the kernel has it)")
	command.Complete(cmd, "attach", func() []string { return []string{string(attach.TCX), string(attach.Clsact)} })
	sockets := command.ModeFlag[attach.SocketMode]{Mode: &options.SocketLB, All: []attach.SocketMode{attach.HostSockets, attach.AllSockets, attach.NoSockets}}
	flags.Var(sockets, "socket-lb", "whose sockets are served as they connect: `host|all|off`")
	command.Complete(cmd, "socket-lb", sockets.Words)
	offNode := command.ModeFlag[lb.OffNode]{Mode: &options.OffNode, All: lb.OffNodes()}
	flags.Var(offNode, "off-node", "how clients off the node get to backends on other nodes: `snat|carry|dsr`; carry: by their own address, in a tunnel; dsr: the same, and that node answers them itself")
	command.Complete(cmd, "off-node", offNode.Words)
	flags.Uint16Var(&options.CarryPort, "carry-port", 0, "UDP `port` of that tunnel, and of heartbeats, which use the next one, too: the same on all nodes, and none that a NodePort may have (default: 6091 with --off-node=carry or dsr, or --node-heartbeats, else none)")
	flags.StringVar(&options.TunnelKeyFile, "tunnel-key-file", "", "`FILE` with a key that all nodes share: what goes through that tunnel has a cookie made of it, or is dropped; two keys, one a line, while it changes")
	shortcut := command.ModeFlag[agent.ShortcutMode]{Mode: &options.Shortcut, All: []agent.ShortcutMode{agent.ShortcutOff, agent.ShortcutAuto, agent.ShortcutOn}}
	flags.Var(shortcut, "shortcut", "whether translated packets leave past the host's stack: `off|auto|on`; auto: while that passes nothing by")
	command.Complete(cmd, "shortcut", shortcut.Words)
	xdp := command.ModeFlag[attach.XDPMode]{Mode: &options.XDP, All: attach.XDPModes()}
	flags.Var(xdp, "xdp", "where packets of connections of clients off the node to other nodes are taken at XDP: `off|auto|native|generic`; native: by the device's driver; auto: so, where that is known to serve")
	command.Complete(cmd, "xdp", xdp.Words)
	flags.StringVar(&options.Cgroup, "cgroup", "", "`directory` of the cgroup of those sockets (default: the whole cgroup2 hierarchy)")
	ejection := command.ModeFlag[lb.Ejection]{Mode: &options.Ejection, All: lb.Ejections()}
	flags.Var(ejection, "ejection", "whether new connections leave out backends that do not answer: `off|observe|on`")
	command.Complete(cmd, "ejection", ejection.Words)
	heartbeats := command.ModeFlag[lb.Ejection]{Mode: &options.Heartbeats, All: lb.Ejections()}
	flags.Var(heartbeats, "node-heartbeats", "whether nodes ask each other each second whether they are there, and new connections leave out backends of one that is silent: `off|observe|on` (default: on with --tunnel-key-file, else off)")
	command.Complete(cmd, "node-heartbeats", heartbeats.Words)
	command.Complete(cmd, "log-format", func() []string { return []string{"text", "json"} })
	command.Complete(cmd, "log-level", func() []string { return []string{"debug", "info", "warn", "error"} })
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := command.FromEnvironment(cmd.Flags()); err != nil || configDir == "" {
			return err
		}
		options.Settings, err = fromDirectory(cmd.Flags(), configDir, command.WarnTo(cmd.ErrOrStderr()))
		return err
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := node.Config(options.NodeName)
		if err != nil {
			return err
		}
		options.NodeName, options.Zone, options.NodeIPs = cfg.Name, cfg.Zone, cfg.IPs
		options.NodePortAddresses, options.ServiceCIDRs, options.KeepNodeless = cfg.NodePortAddresses, cfg.ServiceCIDRs, cfg.KeepNodeless
		options.ProxyName = cfg.ProxyName
		options.ExternalIPs = cfg.ExternalIPs
		if err := names.read(); err != nil {
			return err
		}
		options.Version, options.DropPrivileges, options.Loader = versionText(), true, []string{"/proc/self/exe", loaderCommand}
		options.Log = logs.logger(cmd.ErrOrStderr())
		if page {
			options.Page = ui.Handler(uiNodes{newUINode(agentFlags{pinFlags{options.PinPath}, options.LockDir}, false)})
		}
		if err := options.Check(); err != nil {
			return command.UsageError{Err: err}
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return start(ctx, options)
	}
	return cmd
}

func addAgentFlags(flags *pflag.FlagSet, o *agent.Options) {
	flags.SortFlags = false
	flags.StringVar(&o.NodeName, "node-name", "", "`name` of this node, as in the slices' nodeName")
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "`FILE` that says where the API server is (default: in-cluster)")
	flags.StringSliceVar(&o.APIServers, "api-server", nil, "`URL` of the API server, reached without any service proxy; of several, one that answers (default: the kubeconfig's, or the ClusterIP in the environment)")
	flags.StringVar(&o.Manifests, "manifests", "", "`DIR` of objects, followed as it changes, instead of an API server")
	flags.StringVar(&o.PinPath, "pin-path", o.PinPath, "`directory` on a bpffs for tables, programs and links")
	flags.StringVar(&o.LockDir, "lock-dir", o.LockDir, "`directory` for the lock and the status file")
	flags.StringSliceVar(&o.PodDevices, "pod-devices", nil, "`patterns` of pod devices, as veth*,lxc* (default: found by themselves)")
	flags.StringSliceVar(&o.NetDevices, "net-devices", nil, "`patterns` of devices that lead to other hosts, as eth*,vxlan* (default: found by themselves)")
	flags.Var(portsFlag{&o.SNATPorts}, "snat-ports", "`FIRST-LAST`, source ports of outside clients' connections to backends on other nodes")
	flags.BoolVar(&o.SNATAllPorts, "snat-all-ports", o.SNATAllPorts, "use the others from 1024 on, too, where those are used up, if they are nobody's")
	flags.StringVar(&o.HealthAddress, "health-address", o.HealthAddress, "`address` of /healthz, /livez and /readyz; empty: none")
	flags.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "`address` of /metrics; empty: none")
	flags.IntVar(&o.SeriesLimits.Services, "metrics-services", o.SeriesLimits.Services, "`n` service ports have metrics of their own; others count together")
	flags.IntVar(&o.SeriesLimits.Backends, "metrics-backends", o.SeriesLimits.Backends, "`n` backends, by service port and node, have metrics of their own")
	flags.DurationVar(&o.AuditEvery, "audit-interval", o.AuditEvery, "how often the tables are compared with what was published")
	flags.DurationVar(&o.MassDeletion.Grace, "mass-deletion-grace", o.MassDeletion.Grace,
		"how long objects stay in force when an API server suddenly lists far fewer; 0: not at all")
	flags.IntVar(&o.MassDeletion.Percent, "mass-deletion-percent", o.MassDeletion.Percent,
		"`percent` of the Services, of those with ready endpoints, or of the Nodes: when more are missing at once, they stay")
	flags.DurationVar(&o.Debounce, "debounce", o.Debounce, "ten changes of a Service are published at once; the time in which one more is, while it goes on changing")
	flags.TextVar(&o.Loopback4, "loopback4", o.Loopback4, "`source` of a pod's connections to itself through a Service (default "+maps.DefaultLoopback4().String()+")")
	flags.TextVar(&o.Loopback6, "loopback6", o.Loopback6, "`source` of the same for IPv6 (default "+maps.DefaultLoopback6().String()+")")
}

func addSizeFlags(flags *pflag.FlagSet, o *agent.Options) {
	s := &o.Sizes
	for _, size := range []struct {
		name, what string
		value      *uint32
	}{
		{"frontends", "at most for `n` addresses with port and protocol", &s.Frontends},
		{"records", "at most for `n` frontends and those just replaced", &s.Records},
		{"slots", "at most for `n` Maglev slots", &s.Slots},
		{"backends", "at most for `n` endpoints of service ports", &s.Backends},
		{"flow-sets", "for `n` sets of 8 connections, a power of two (default: by the node's memory, and growing)", &s.FlowSets},
		{"affinity", "for `n` clients of session affinity", &s.Affinity},
		{"fragments", "for `n` fragmented packets in flight", &s.Fragments},
		{"source-ranges", "at most for `n` loadBalancerSourceRanges", &s.SourceRanges},
		{"services", "at most for `n` service ports", &s.Services},
		{"names", "at most for `n` names of service ports, nodes, zones", &s.Names},
		{"answers", "for `n` names that --dns-fast-path answers", &s.Answers},
	} {
		flags.Uint32Var(size.value, "size-"+size.name, *size.value, "room "+size.what)
	}
}

// portsFlag reads a range of ports.
type portsFlag struct{ ports *maps.PortRange }

func (f portsFlag) Type() string   { return "ports" }
func (f portsFlag) String() string { return f.ports.String() }

func (f portsFlag) Set(text string) error {
	ports, err := agent.ParseSNATPorts(text)
	if err != nil {
		return command.UsageError{Err: err}
	}
	*f.ports = ports
	return nil
}

// attachFlag checks the method as it is set.
type attachFlag struct{ method *attach.Method }

func (f attachFlag) Type() string   { return "method" }
func (f attachFlag) String() string { return string(*f.method) }

func (f attachFlag) Set(text string) error {
	switch method := attach.Method(strings.ToLower(text)); method {
	case attach.TCX, attach.Clsact, "":
		*f.method = method
		return nil
	}
	return command.Usagef("want tcx or clsact")
}
