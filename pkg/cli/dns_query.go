// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	wire "github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// queryDocument is the contract of `nearlb dns query -o json`.
type queryDocument struct {
	Name    string        `json:"name"`
	Type    string        `json:"type"`
	Rcode   string        `json:"rcode"`
	Way     dns.Way       `json:"way"`
	Rule    string        `json:"rule"`
	Answers []queryAnswer `json:"answers"`
	LeftOut []leftOut     `json:"left_out"`
	Walk    []askedBefore `json:"walk"`
}

type queryAnswer struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Data string `json:"data"`
	TTL  uint32 `json:"ttl"`
	Tier string `json:"tier,omitempty"`
}

type leftOut struct {
	Data   string `json:"data"`
	Reason string `json:"reason"`
}

// askedBefore is a name that a search list leads through.
type askedBefore struct {
	Name  string `json:"name"`
	Rcode string `json:"rcode"`
}

// namesInFiles are what names are answered from, and the Pods that ask.
type namesInFiles struct {
	*dns.View
	pods     map[lb.PodName]lb.NamedPod
	services map[lb.ServiceName]lb.NamedService
}

func (n *namesInFiles) SetPod(p lb.NamedPod) {
	n.pods[p.Name] = p
	n.View.SetPod(p)
}

func (n *namesInFiles) Set(s lb.NamedService) {
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
	complete(cmd, "pods", podModes)
}

// read gives a responder as an agent has it, without an upstream. Of the zones the last dots are taken.
func (f *nameFlags) read(cmd *cobra.Command) (*namesInFiles, *dns.Responder, error) {
	zones, err := clusterZones(f.zones)
	switch {
	case err != nil:
		return nil, nil, err
	case len(f.files) == 0 || slices.Contains(f.files, ""):
		return nil, nil, usagef("--filename is missing: name a file or directory of objects, or - for standard input")
	case !slices.Contains(podModes(), f.pods):
		return nil, nil, usagef("--pods %q: want %s", f.pods, strings.Join(podModes(), ", "))
	}
	f.zones = zones
	n := &namesInFiles{pods: map[lb.PodName]lb.NamedPod{}, services: map[lb.ServiceName]lb.NamedService{}}
	n.View = dns.NewView(dns.ViewOptions{Node: f.node, Reverse: true})
	log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	if _, err := watch.FollowNames(f.files, cmd.InOrStdin(), log, n); err != nil {
		return nil, nil, usageError{err}
	}
	return n, dns.NewResponder(n.View, dns.Options{Zones: zones, ReverseZones: []string{"in-addr.arpa", "ip6.arpa"}, Pods: dns.PodRecords(f.pods),
		TTL: defaultNameTTL, Zonal: true}), nil
}

// defaultNameTTL is the agent's, in seconds: how long answers may be kept.
const defaultNameTTL = 5

func dnsQueryCommand() *cobra.Command {
	var f nameFlags
	var client string
	cmd := &cobra.Command{
		Use:   "query -f FILE|DIR ... NAME [TYPE]",
		Short: "Say what a name answers with, and why",
		Long: `Answers NAME as the responder of a node would from these objects, and says by
which rule, how near each endpoint is, and which are left out. With --client a
name without a last dot is looked up as that pod does: the names of its search
list that are asked before are listed.`,
		Example: `  nearlb dns query -f objects.yaml --node n1 db.prod.svc.cluster.local
  nearlb dns query -f objects.yaml db.prod --client 10.244.1.7 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 2 {
				return usagef("%d arguments: want NAME [TYPE], as db.prod.svc.cluster.local AAAA", len(args))
			}
			return nil
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&client, "client", "", "`IP` of the pod that asks: its search list is walked")
	format := addOutputFlag(cmd, formatTable, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		qtype := uint16(wire.TypeA)
		if len(args) == 2 {
			var known bool
			if qtype, known = wire.StringToType[strings.ToUpper(args[1])]; !known {
				return usagef("type %q: want A, AAAA, SRV, PTR, CNAME, TXT, SOA or NS", args[1])
			}
		}
		if _, ok := wire.IsDomainName(args[0]); !ok || args[0] == "" {
			return usagef("name %q: want a domain name, as db.prod.svc.cluster.local", args[0])
		}
		names, responder, err := f.read(cmd)
		if err != nil {
			return err
		}
		walk := []string{wire.Fqdn(args[0])}
		if client != "" {
			if walk, err = f.walk(names, client, args[0]); err != nil {
				return err
			}
		}
		doc := ask(cmd.Context(), responder, walk, qtype)
		switch format.value {
		case formatJSON:
			return writeJSON(cmd.OutOrStdout(), doc)
		case formatYAML:
			return writeYAML(cmd.OutOrStdout(), doc)
		}
		return writeQuery(cmd.OutOrStdout(), doc)
	}
	return cmd
}

// walk are the names that the pod of an address asks for one after the other. Pods of the node's network share its address: they must agree.
func (f *nameFlags) walk(names *namesInFiles, client, name string) ([]string, error) {
	address, err := netip.ParseAddr(client)
	if err != nil {
		return nil, usagef("--client %q: want an IP address, as 10.244.1.7", client)
	}
	kubelet := dns.Kubelet{Zone: f.zones[0], ClusterDNS: []netip.Addr{address}} // any: only the search list is used
	var first *lb.PodName
	var walk []string
	for _, pod := range slices.SortedFunc(maps.Keys(names.pods), comparePods) {
		if !slices.Contains(names.pods[pod].Addresses, address.Unmap()) {
			continue
		}
		own := kubelet.NamesOf(names.pods[pod]).Walk(name)
		if first != nil && !slices.Equal(own, walk) {
			return nil, usagef("--client %s: Pods %s/%s and %s/%s have this address, and look %s up in different ways: want an address of one",
				client, first.Namespace, first.Name, pod.Namespace, pod.Name, name)
		}
		first, walk = &pod, own
	}
	if first == nil {
		return nil, usagef("--client %s: no Pod of the files has this address", client)
	}
	return walk, nil
}

// ask asks for names until one has records; where none has, the last answers. All records are told, however many a message could carry.
func ask(ctx context.Context, responder *dns.Responder, walk []string, qtype uint16) queryDocument {
	doc := queryDocument{Type: wire.TypeToString[qtype], Answers: []queryAnswer{}, LeftOut: []leftOut{}, Walk: []askedBefore{}}
	for i, name := range walk {
		question := new(wire.Msg)
		question.SetQuestion(name, qtype)
		reply, way := responder.Answer(ctx, question, dns.Client{})
		doc.Name, doc.Way, doc.Rcode = name, way, wire.RcodeToString[reply.Rcode]
		if len(reply.Answer) == 0 && i < len(walk)-1 {
			doc.Walk = append(doc.Walk, askedBefore{doc.Name, doc.Rcode})
			continue
		}
		why := responder.Explain(name)
		doc.Rule = why.Rule
		for _, rr := range reply.Answer {
			doc.Answers = append(doc.Answers, answerOf(rr, why))
		}
		for _, out := range why.LeftOut {
			if isOfType(out.Address, qtype) {
				doc.LeftOut = append(doc.LeftOut, leftOut{out.Address.String(), out.Reason})
			}
		}
		break
	}
	return doc
}

// isOfType tells whether a question for a type could be answered with an address.
func isOfType(a netip.Addr, qtype uint16) bool {
	return qtype == wire.TypeSRV || qtype == wire.TypeA && a.Is4() || qtype == wire.TypeAAAA && a.Is6()
}

func answerOf(rr wire.RR, why dns.Explanation) queryAnswer {
	h := rr.Header()
	data := strings.TrimPrefix(rr.String(), h.String())
	out := queryAnswer{Name: h.Name, Type: wire.TypeToString[h.Rrtype], Data: data, TTL: h.Ttl}
	if a, err := netip.ParseAddr(data); err == nil {
		out.Tier = why.Tiers[a]
	}
	return out
}

func writeQuery(w io.Writer, doc queryDocument) error {
	for _, before := range doc.Walk {
		fmt.Fprintf(w, "asked before: %s %s\n", printable(before.Name), before.Rcode)
	}
	fmt.Fprintf(w, "%s %s: %s, %s\n", printable(doc.Name), doc.Type, doc.Rcode, printable(doc.Rule))
	for _, a := range doc.Answers {
		near := ""
		if a.Tier != "" {
			near = "  " + a.Tier
		}
		fmt.Fprintf(w, "  %s %d %s %s%s\n", printable(a.Name), a.TTL, a.Type, printable(a.Data), near)
	}
	for _, out := range doc.LeftOut {
		fmt.Fprintf(w, "  left out: %s, %s\n", out.Data, out.Reason)
	}
	return nil
}
