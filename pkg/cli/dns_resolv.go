// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/table"
)

// podNames is one Pod of `nearlb dns resolv-conf`.
type podNames struct {
	Pod string `json:"pod"`
	dns.PodNames
	Walk []string `json:"walk,omitempty"`
}

func dnsResolvConfCommand() *cobra.Command {
	var f nameFlags
	var cluster []string
	var node, lookup string
	cmd := &cobra.Command{
		Use:   "resolv-conf -f FILE|DIR ...",
		Short: "Print what the kubelet writes into pods' resolv.conf",
		Long: `Prints the resolv.conf and the hostname that the kubelet gives to each Pod of
the files, and what is wrong with them. With Services in the files it is also
said where a Pod's subdomain has none.`,
		Example: `  nearlb dns resolv-conf -f pod.yaml --cluster-dns 10.96.0.10
  nearlb dns resolv-conf -f pod.yaml --lookup www.example.com`,
		Args: command.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "`FILE|DIR` with Pods, and Services; - is standard input (repeatable)")
	flags.StringSliceVar(&f.zones, "zone", []string{"cluster.local"}, "`zone` of the cluster (clusterDomain)")
	flags.StringSliceVar(&cluster, "cluster-dns", []string{"10.96.0.10"}, "`IP,...` of the cluster's DNS (clusterDNS)")
	flags.StringVar(&node, "node-resolv-conf", "", "`FILE` that the kubelet takes for the node's (resolvConf); without it the node has none, and an empty one is the kubelet's own \"\"")
	flags.StringVar(&lookup, "lookup", "", "`NAME` to look up: prints the names that are asked for one after the other")
	format := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("lookup") {
			if err := checkName("--lookup", lookup); err != nil {
				return err
			}
		}
		f.pods = string(dns.PodsDisabled)
		names, _, err := f.read(cmd)
		if err != nil {
			return err
		}
		kubelet, err := kubeletOf(f.zones[0], cluster, node)
		if err != nil {
			return err
		}
		kubelet.Nobody = node == "" && cmd.Flags().Changed("node-resolv-conf")
		if len(names.pods) == 0 {
			return command.Usagef("--filename: there is no Pod in it")
		}
		rows := []podNames{}
		for _, name := range slices.SortedFunc(maps.Keys(names.pods), comparePods) {
			row := podNames{Pod: name.String(), PodNames: kubelet.NamesOf(names.pods[name])}
			row.Problems = append(row.Problems, names.subdomainProblem(names.pods[name])...)
			if lookup != "" {
				row.Walk = row.ResolvConf.Walk(lookup)
			}
			rows = append(rows, row)
		}
		switch format.Value {
		case command.FormatJSON:
			return command.WriteJSON(cmd.OutOrStdout(), rows)
		case command.FormatYAML:
			return command.WriteYAML(cmd.OutOrStdout(), rows)
		}
		return writePodNames(cmd.OutOrStdout(), rows)
	}
	return cmd
}

func comparePods(a, b lb.PodName) int {
	return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
}

func kubeletOf(zone string, cluster []string, node string) (k dns.Kubelet, err error) {
	k.Zone = zone
	for _, text := range cluster {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return k, command.Usagef("--cluster-dns %q: want an IP address, as 10.96.0.10", text)
		}
		k.ClusterDNS = append(k.ClusterDNS, ip)
	}
	if node == "" {
		return k, nil
	}
	text, err := os.ReadFile(node)
	if err != nil {
		return k, command.UsageError{Err: fmt.Errorf("--node-resolv-conf: %w", err)}
	}
	if k.Node, err = dns.ParseResolvConf(string(text)); err != nil {
		return k, command.UsageError{Err: fmt.Errorf("--node-resolv-conf %s: %w", node, err)}
	}
	return k, nil
}

// subdomainProblem tells where a Pod's subdomain names no headless Service: its hostname is no name then. Files without any Service
// are of Pods alone.
func (n *namesInFiles) subdomainProblem(pod lb.NamedPod) []string {
	if pod.Wishes == nil || pod.Wishes.Subdomain == "" || len(n.services) == 0 {
		return nil
	}
	name := lb.ServiceName{Namespace: pod.Name.Namespace, Name: pod.Wishes.Subdomain}
	switch s, exists := n.services[name]; {
	case !exists || s.Unserved:
		return []string{fmt.Sprintf("spec.subdomain: there is no Service %s: the Pod's hostname is no name", name)}
	case !s.Headless:
		return []string{fmt.Sprintf("spec.subdomain: Service %s has a ClusterIP: want clusterIP None", name)}
	}
	return nil
}

func writePodNames(w io.Writer, rows []podNames) error {
	for i, row := range rows {
		if i > 0 {
			fmt.Fprintln(w)
		}
		hostname := row.Hostname
		if hostname == "" {
			hostname = "of the node"
		}
		fmt.Fprintf(w, "# Pod %s, hostname %s\n%s", table.Printable(row.Pod), table.Printable(hostname), printableLines(row.ResolvConf.String()))
		for _, name := range row.Walk {
			fmt.Fprintf(w, "# asks for %s\n", table.Printable(name))
		}
		for _, problem := range row.Problems {
			fmt.Fprintf(w, "# problem: %s\n", table.Printable(problem))
		}
	}
	return nil
}

func printableLines(text string) string {
	lines := strings.SplitAfter(text, "\n")
	for i, line := range lines {
		if body, ended := strings.CutSuffix(line, "\n"); ended {
			lines[i] = table.Printable(body) + "\n"
		}
	}
	return strings.Join(lines, "")
}
