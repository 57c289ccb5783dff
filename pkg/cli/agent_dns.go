// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
)

// agentNames are the flags of the agent's responder, as far as they are read by more than pflag.
type agentNames struct {
	to       *agent.NameOptions
	pods     string
	upstream []string
	alsoAt   []string
	flags    *pflag.FlagSet
}

const (
	dnsAddressFlag  = "dns-address"
	dnsFastPathFlag = "dns-fast-path"
)

// addNameFlags adds the flags of the agent's responder.
func addNameFlags(cmd *cobra.Command, o *agent.NameOptions) *agentNames {
	n := &agentNames{to: o, flags: cmd.Flags()}
	flags := n.flags
	flags.BoolVar(&o.On, "dns", false, "answer names of Services and Pods for the pods of this node and the node itself")
	flags.Var(serviceFlag{&o.Service}, "dns-service", "`NAMESPACE/NAME` of the cluster's DNS, in whose place names are answered")
	flags.Uint16Var(&o.Port, "dns-port", o.Port, "`port` of the node's addresses to answer on")
	for _, a := range o.AlsoAt {
		n.alsoAt = append(n.alsoAt, a.String())
	}
	flags.StringSliceVar(&n.alsoAt, dnsAddressFlag, n.alsoAt, "`IP,...` where names are asked for as well, as at NodeLocal DNSCache's address")
	flags.StringSliceVar(&o.Zones, "dns-zone", o.Zones, "`zone` of the cluster")
	flags.StringVar(&n.pods, "dns-pods", string(o.Pods), "names of pods' addresses: `disabled|insecure|verified`")
	flags.Uint32Var(&o.TTL, "dns-ttl", o.TTL, "`seconds` that answers may be kept, 0 to 3600")
	flags.StringSliceVar(&n.upstream, "dns-upstream", nil, "`IP:PORT,...` of name servers for all other names (default: the endpoints of the cluster's DNS)")
	flags.BoolVar(&o.FastPath, dnsFastPathFlag, o.FastPath, "with --dns, answer A and AAAA questions of pods for names of the cluster in the kernel")
	command.Complete(cmd, "dns-pods", podModes)
	return n
}

// read puts what the flags say into the options.
func (n *agentNames) read() (err error) {
	n.to.Pods = dns.PodRecords(n.pods)
	if n.to.FastPath && !n.to.On && n.flags.Changed(dnsFastPathFlag) {
		return command.Usagef("--dns-fast-path: want --dns as well")
	}
	n.to.AlsoAt = nil
	for _, text := range n.alsoAt {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast() {
			return command.Usagef("--dns-address %q: want an IP address that pods can ask, as 169.254.20.10", text)
		}
		n.to.AlsoAt = append(n.to.AlsoAt, ip.Unmap())
	}
	if n.to.Upstreams, err = upstreams("dns-upstream", n.upstream); err != nil {
		return err
	}
	if !n.flags.Changed(dnsAddressFlag) {
		n.to.LeaveUpstreams()
	}
	return nil
}

// serviceFlag reads NAMESPACE/NAME.
type serviceFlag struct{ name *lb.ServiceName }

func (f serviceFlag) Type() string   { return "service" }
func (f serviceFlag) String() string { return f.name.String() }

func (f serviceFlag) Set(text string) error {
	name, err := agent.ParseServiceName(text)
	if err != nil {
		return command.UsageError{Err: err}
	}
	*f.name = name
	return nil
}
