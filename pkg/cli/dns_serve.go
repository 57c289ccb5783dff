// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/dns"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

// dnsFlags are those of `nearlb dns serve`, as they are written.
type dnsFlags struct {
	files    []string
	listen   string
	zones    []string
	reverse  []string
	pods     string
	ttl      int
	upstream []string
	node     lb.Node
	zonal    bool
	own      []string
	ignore   bool
	podNames bool
	logs     logFlags
}

func dnsServeCommand() *cobra.Command {
	var f dnsFlags
	cmd := &cobra.Command{
		Use:   "serve -f FILE|DIR ... --listen ADDR:PORT",
		Short: "Be the name server of objects from files",
		Long: `Answers the names of Services and Pods from files with Services, EndpointSlices,
Namespaces and Pods, by UDP and TCP, and follows the files as they change. It
prints "serving ADDR:PORT" when it answers, and ends with 0 at SIGTERM. Names
outside of its zones are refused, or forwarded to --upstream.`,
		Example: `  nearlb dns serve -f manifests/ --listen 127.0.0.1:5353
  nearlb dns serve -f objects.yaml --listen [::1]:0 --upstream 192.0.2.53:53`,
		Args: command.NoArguments,
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.files, "filename", "f", nil, "`FILE|DIR` with Services, EndpointSlices, Namespaces, Pods, Nodes; - is standard input (repeatable)")
	flags.StringVar(&f.listen, "listen", "", "`ADDR:PORT` to answer on; port 0 takes a free one")
	flags.StringSliceVar(&f.zones, "zone", []string{"cluster.local"}, "`zone` of the cluster")
	flags.StringSliceVar(&f.reverse, "reverse-zone", nil, "`zones` of addresses to answer: in-addr.arpa,ip6.arpa or zones in them")
	flags.StringVar(&f.pods, "pods", string(dns.PodsDisabled), "names of pods' addresses: `disabled|insecure|verified`")
	flags.IntVar(&f.ttl, "ttl", defaultNameTTL, "`seconds` that answers may be kept, 0 to 3600")
	flags.StringSliceVar(&f.upstream, "upstream", nil, "`IP:PORT,...` of name servers for all other names")
	flags.StringVar(&f.node.Name, "node", "", "`name` of the clients' node, for what is near")
	flags.StringVar(&f.node.Zone, "node-zone", "", "`zone` of the clients' node, instead of the Node object's")
	flags.BoolVar(&f.zonal, "zonal", false, "answer ZONE.pin._zone and ZONE.prefer._zone names of headless Services")
	flags.StringSliceVar(&f.own, "own-address", nil, "`IP,...` that clients reach this server by, for NS")
	flags.BoolVar(&f.ignore, "ignore-empty-service", false, "a Service with a ClusterIP and without a ready endpoint does not exist")
	flags.BoolVar(&f.podNames, "endpoint-pod-names", false, "name endpoints without hostname by their pod, not by their address")
	f.logs.add(flags)
	command.Complete(cmd, "pods", func() []string { return podModes() })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options, err := f.options()
		if err != nil {
			return err
		}
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return f.serve(ctx, cmd.InOrStdin(), cmd.OutOrStdout(), f.logs.logger(cmd.ErrOrStderr()), options)
	}
	return cmd
}

func podModes() []string {
	return []string{string(dns.PodsDisabled), string(dns.PodsInsecure), string(dns.PodsVerified)}
}

// options checks the values; the errors name the flag and what it wants.
func (f *dnsFlags) options() (o dns.Options, err error) {
	o = dns.Options{Pods: dns.PodRecords(f.pods), TTL: uint32(f.ttl), Zonal: f.zonal, IgnoreEmpty: f.ignore}
	switch {
	case len(f.files) == 0 || slices.Contains(f.files, ""):
		return o, command.Usagef("--filename is missing: name a file or directory of objects, or - for standard input")
	case f.listen == "":
		return o, command.Usagef("--listen is missing: want ADDR:PORT, as 127.0.0.1:5353")
	case !slices.Contains(podModes(), f.pods):
		return o, command.Usagef("--pods %q: want %s", f.pods, strings.Join(podModes(), ", "))
	case f.ttl < 0 || f.ttl > 3600:
		return o, command.Usagef("--ttl %d: want seconds from 0 to 3600", f.ttl)
	}
	listen, err := listenAddress(f.listen)
	if err != nil {
		return o, err
	}
	if o.Zones, err = clusterZones(f.zones); err != nil {
		return o, err
	}
	if o.ReverseZones, err = zones("reverse-zone", f.reverse); err != nil {
		return o, err
	}
	for _, zone := range o.ReverseZones {
		zone := strings.ToLower(zone)
		if !strings.HasSuffix("."+zone, ".in-addr.arpa") && !strings.HasSuffix("."+zone, ".ip6.arpa") {
			return o, command.Usagef("--reverse-zone %q: want in-addr.arpa, ip6.arpa or a zone in them", zone)
		}
	}
	for _, text := range f.own {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			return o, command.Usagef("--own-address %q: want an IP address, as 192.0.2.53", text)
		}
		o.OwnAddresses = append(o.OwnAddresses, ip.Unmap())
	}
	servers, err := upstreams("upstream", f.upstream)
	for _, server := range servers {
		if answersAt(listen, server) {
			return o, command.Usagef("--upstream %v: this server answers there itself (--listen)", server)
		}
	}
	if len(servers) > 0 {
		o.Forwarder = dns.NewForwarder(dns.NewUpstreams(servers))
	}
	return o, err
}

// listenAddress reads --listen. Without an address it is every one: the zero Addr.
func listenAddress(text string) (netip.AddrPort, error) {
	var address netip.Addr
	var number uint64
	host, port, err := net.SplitHostPort(text)
	if err == nil {
		number, err = strconv.ParseUint(port, 10, 16)
	}
	if err == nil && host != "" {
		address, err = netip.ParseAddr(host)
	}
	if err != nil {
		return netip.AddrPort{}, command.Usagef("--listen %q: want ADDR:PORT, as 127.0.0.1:5353 or [::1]:5353", text)
	}
	return netip.AddrPortFrom(address, uint16(number)), nil
}

// answersAt tells that who listens at an address is asked by questions to a server, as far as the texts say.
func answersAt(listen, server netip.AddrPort) bool {
	at := listen.Addr()
	everywhere := !at.IsValid() || at.IsUnspecified()
	return listen.Port() == server.Port() && (at.Unmap() == server.Addr().Unmap() || everywhere && server.Addr().IsLoopback())
}

// clusterZones are one or more: names of Services are in one.
func clusterZones(texts []string) ([]string, error) {
	if len(texts) == 0 {
		return nil, command.Usagef("--zone %q: want a domain name, as cluster.local", "")
	}
	return zones("zone", texts)
}

func zones(flag string, texts []string) (out []string, err error) {
	for _, text := range texts {
		if !dns.IsZone(text) {
			return nil, command.Usagef("--%s %q: want a domain name, as cluster.local", flag, text)
		}
		out = append(out, strings.TrimSuffix(text, "."))
	}
	return out, nil
}

// upstreams reads IP:PORT, and IP alone for port 53.
func upstreams(flag string, texts []string) (out []netip.AddrPort, err error) {
	for _, text := range texts {
		server, err := netip.ParseAddrPort(text)
		if ip, plain := netip.ParseAddr(text); plain == nil {
			server, err = netip.AddrPortFrom(ip, lb.NamesPort), nil
		}
		if err != nil || server.Port() == 0 {
			return nil, command.Usagef("--%s %q: want IP:PORT, as 192.0.2.53:53", flag, text)
		}
		out = append(out, server)
	}
	return out, nil
}

// serve answers until ctx ends.
func (f *dnsFlags) serve(ctx context.Context, in io.Reader, out io.Writer, log *slog.Logger, o dns.Options) error {
	view := dns.NewView(dns.ViewOptions{Node: f.node, PodNames: f.podNames})
	files, err := watch.FollowNames(f.files, in, log, view)
	if err != nil {
		return command.UsageError{Err: err}
	}
	server := dns.Server{Responder: dns.NewResponder(view, o), Address: f.listen, Log: log,
		Ready: func(address string) { fmt.Fprintf(out, "serving %s\n", address) }}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return files.Run(ctx) })
	group.Go(func() error { return server.Run(ctx) })
	return group.Wait()
}
