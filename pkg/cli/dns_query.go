// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	wire "github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/watch"
)

// namesInFiles are what names are answered from, and the Pods that ask.
type namesInFiles struct {
	*dns.View
	pods     map[lb.PodName]lb.NamedPod
	services map[lb.ServiceName]*lb.NamedService
}

func (n *namesInFiles) SetPod(p lb.NamedPod) {
	n.pods[p.Name] = p
	n.View.SetPod(p)
}

func (n *namesInFiles) Set(s *lb.NamedService) {
	n.services[s.Name] = s
	n.View.Set(s)
}

// nameFlags are those of commands that read objects for names.
type nameFlags struct {
	files []string
	node  lb.Node
	zones []string
	pods  string
}

func (f *nameFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "`FILE|DIR` with Services, EndpointSlices, Namespaces, Pods, Nodes; - is standard input (repeatable)")
	flags.StringSliceVar(&f.zones, "zone", []string{"cluster.local"}, "`zone` of the cluster")
	flags.StringVar(&f.pods, "pods", string(dns.PodsInsecure), "names of pods' addresses: `disabled|insecure|verified`")
	flags.StringVar(&f.node.Name, "node", "", "`name` of the clients' node, for what is near")
	flags.StringVar(&f.node.Zone, "node-zone", "", "`zone` of the clients' node, instead of the Node object's")
	command.Complete(cmd, "pods", podModes)
}

// read gives a responder as an agent has it, without an upstream. Of the zones the last dots are taken.
func (f *nameFlags) read(cmd *cobra.Command) (*namesInFiles, *dns.Responder, error) {
	zones, err := clusterZones(f.zones)
	switch {
	case err != nil:
		return nil, nil, err
	case len(f.files) == 0 || slices.Contains(f.files, ""):
		return nil, nil, command.Usagef("--filename is missing: name a file or directory of objects, or - for standard input")
	case !slices.Contains(podModes(), f.pods):
		return nil, nil, command.Usagef("--pods %q: want %s", f.pods, strings.Join(podModes(), ", "))
	}
	f.zones = zones
	n := &namesInFiles{pods: map[lb.PodName]lb.NamedPod{}, services: map[lb.ServiceName]*lb.NamedService{}}
	n.View = dns.NewView(dns.ViewOptions{Node: f.node})
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	if _, err := watch.FollowNames(f.files, cmd.InOrStdin(), log, n); err != nil {
		return nil, nil, command.UsageError{Err: err}
	}
	return n, dns.NewResponder(n.View, dns.Options{Zones: zones, ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: dns.PodRecords(f.pods),
		TTL: defaultNameTTL, Zonal: true}), nil
}

// defaultNameTTL is the agent's, in seconds: how long answers may be kept.
const defaultNameTTL = 5

func dnsQueryCommand() *cobra.Command {
	var f nameFlags
	var live liveNames
	var client string
	cmd := &cobra.Command{
		Use:   "query [-f FILE|DIR ...] NAME [TYPE]",
		Short: "Say what a name answers with, and why",
		Long: `Answers NAME as the agent of this node does now, or with -f as one would from
objects of files. Says by which rule and in which way, how near each endpoint
is, and which are left out. With --client a name without a last dot is looked up
as that pod does: the names of its search list that are asked before are listed.
An agent takes pods to have no dnsPolicy and no dnsConfig of their own.`,
		Example: `  nearlb dns query db.prod.svc.cluster.local
  nearlb dns query db.prod --client 10.244.1.7 -o json
  nearlb dns query -f objects.yaml --node n1 db.prod.svc.cluster.local SRV`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return command.Usagef("want one or two arguments, NAME [TYPE], as db.prod.svc.cluster.local AAAA: there are %d", len(args))
			}
			return nil
		},
	}
	f.add(cmd)
	live.add(cmd.Flags())
	cmd.Flags().StringVar(&client, "client", "", "`IP` of the pod that asks: its search list is walked")
	format := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		qtype, err := questionOf(args)
		if err != nil {
			return err
		}
		doc, err := lookUp(cmd, &f, &live, args[0], qtype, client)
		if err != nil {
			return err
		}
		switch format.Value {
		case command.FormatJSON:
			return command.WriteJSON(cmd.OutOrStdout(), doc)
		case command.FormatYAML:
			return command.WriteYAML(cmd.OutOrStdout(), doc)
		}
		return writeQuery(cmd.OutOrStdout(), doc)
	}
	return cmd
}

// questionOf checks NAME and reads [TYPE].
func questionOf(args []string) (qtype uint16, err error) {
	qtype = wire.TypeA
	if len(args) == 2 {
		var known bool
		if qtype, known = wire.StringToType[strings.ToUpper(args[1])]; !known {
			return 0, command.Usagef("type %q: want A, AAAA, SRV, PTR, CNAME, TXT, SOA or NS", args[1])
		}
	}
	return qtype, checkName("name", args[0])
}

// checkName refuses what no resolver looks up.
func checkName(what, name string) error {
	if _, ok := wire.IsDomainName(name); !ok || name == "" {
		return command.Usagef("%s %q: want a domain name, as db.prod.svc.cluster.local", what, name)
	}
	return nil
}

// lookUp asks the agent, or answers from files.
func lookUp(cmd *cobra.Command, f *nameFlags, live *liveNames, name string, qtype uint16, client string) (doc dns.LookUp, err error) {
	if isLive, err := live.asked(cmd, f); err != nil {
		return doc, err
	} else if isLive {
		return live.query(cmd.Context(), name, qtype, client)
	}
	names, responder, err := f.read(cmd)
	if err != nil {
		return doc, err
	}
	walk := []string{wire.Fqdn(name)}
	if client != "" {
		if walk, err = f.walk(names, client, name); err != nil {
			return doc, err
		}
	}
	return responder.LookUp(cmd.Context(), walk, qtype), nil
}

// walk are the names that the pod of an address asks for one after the other. Pods of the node's network share its address: they must agree.
func (f *nameFlags) walk(names *namesInFiles, client, name string) ([]string, error) {
	address, err := netip.ParseAddr(client)
	if err != nil {
		return nil, command.Usagef("--client %q: want an IP address, as 10.244.1.7", client)
	}
	var first *lb.PodName
	var walk []string
	for _, pod := range slices.SortedFunc(maps.Keys(names.pods), comparePods) {
		if !slices.Contains(names.pods[pod].Addresses, address.Unmap()) {
			continue
		}
		own := dns.WalkOf(names.pods[pod], f.zones[0], name)
		if first != nil && !slices.Equal(own, walk) {
			return nil, command.Usagef("--client %s: Pods %s/%s and %s/%s have this address, and look %s up in different ways: want an address of one",
				client, first.Namespace, first.Name, pod.Namespace, pod.Name, name)
		}
		first, walk = &pod, own
	}
	if first == nil {
		return nil, command.Usagef("--client %s: no Pod of the files has this address", client)
	}
	return walk, nil
}

func writeQuery(w io.Writer, doc dns.LookUp) error {
	for _, before := range doc.Walk {
		fmt.Fprintf(w, "asked before: %s %s\n", table.Printable(before.Name), before.Rcode)
	}
	fmt.Fprintf(w, "%s %s: %s, %s%s\n", table.Printable(doc.Name), doc.Type, doc.Rcode, table.Printable(doc.Rule), wayText(doc.Way))
	for _, a := range doc.Answers {
		near := ""
		if a.Tier != "" {
			near = "  " + a.Tier
		}
		fmt.Fprintf(w, "  %s %d %s %s%s\n", table.Printable(a.Name), a.TTL, a.Type, table.Printable(a.Data), near)
	}
	for _, out := range doc.LeftOut {
		fmt.Fprintf(w, "  left out: %s, %s\n", out.Address, out.Reason)
	}
	return nil
}

// wayText says what no rule says: how old an upstream's answer may be.
func wayText(way dns.Way) string {
	switch way {
	case dns.WayKernel:
		return ", answered in the kernel"
	case dns.WayCached:
		return ", kept from before"
	case dns.WayStale:
		return ", kept from before and too old: the upstream does not answer"
	}
	return ""
}
