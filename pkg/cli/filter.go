// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
)

// filter keeps the rows that a person asked for. What was not asked for is zero and keeps everything.
type filter struct {
	service    string
	namespace  string
	everywhere bool // --all-namespaces, which is what there is without a namespace
	node       string
	backend    addressFlag
	client     addressFlag
	frontend   addressFlag
	all        bool // verdicts: those that counted nothing too
}

// addressFlag is an IP address, with a port or without.
type addressFlag struct {
	addr netip.Addr
	port uint16 // 0: any
}

func (f *addressFlag) Type() string { return "IP[:PORT]" }

func (f *addressFlag) String() string {
	switch {
	case !f.addr.IsValid():
		return ""
	case f.port == 0:
		return f.addr.String()
	}
	return netip.AddrPortFrom(f.addr, f.port).String()
}

// Set reads 10.244.1.2, 10.244.1.2:8080, fd00::1 or [fd00::1]:8080.
func (f *addressFlag) Set(text string) (err error) {
	f.addr, f.port, err = parseAddress(text)
	return err
}

// keeps says whether an address and port are the ones asked for.
func (f *addressFlag) keeps(addr netip.Addr, port uint16) bool {
	return !f.addr.IsValid() || f.addr == addr && (f.port == 0 || f.port == port)
}

// keepsService takes namespace/name, with or without :port, or a name alone in any namespace.
func (f *filter) keepsService(service, port string) bool {
	if f.namespace != "" && !strings.HasPrefix(service, f.namespace+"/") {
		return false
	}
	want, wantPort, hasPort := strings.Cut(f.service, ":")
	if hasPort && wantPort != port {
		return false
	}
	return want == "" || want == service || strings.HasSuffix(service, "/"+want)
}

func (f *filter) keepsNode(node string) bool { return f.node == "" || f.node == node }

// narrows says whether any row may have been left out because of what was asked for.
func (f filter) narrows() bool {
	f.all, f.everywhere = false, false
	return f != filter{}
}

// Which filters a command has.
const (
	byService = 1 << iota
	byNode
	byBackend
	byClient
	byFrontend
)

func (f *filter) add(cmd *cobra.Command, which int, pins *pinFlags) {
	flags := cmd.Flags()
	if which&byService != 0 {
		flags.StringVar(&f.service, "service", "", "only this Service: `namespace/name[:port]`, or its name in any namespace")
		command.Complete(cmd, "service", func() []string { return liveServices(pins) })
		flags.StringVarP(&f.namespace, "namespace", "n", "", "only Services of this `namespace`")
		flags.BoolVarP(&f.everywhere, "all-namespaces", "A", false, "of all namespaces, as without --namespace")
		command.Complete(cmd, "namespace", func() []string { return liveNamespaces(pins) })
	}
	if which&byNode != 0 {
		flags.StringVar(&f.node, "node", "", "only what has to do with backends on the node of this `name`")
		command.Complete(cmd, "node", func() []string { return liveNodes(pins) })
	}
	if which&byBackend != 0 {
		flags.Var(&f.backend, "backend", "only this backend")
	}
	if which&byClient != 0 {
		flags.Var(&f.client, "client", "only this client")
	}
	if which&byFrontend != 0 {
		flags.Var(&f.frontend, "frontend", "only this frontend")
	}
}

// takesName has a command take a Service's name as its argument.
func takesName(cmd *cobra.Command, pins *pinFlags) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return command.Usagef("%d arguments: %s takes the name of one Service", len(args), cmd.CommandPath())
		}
		return nil
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return liveServices(pins), cobra.ShellCompDirectiveNoFileComp
	}
}

// take takes a Service's name from the arguments, and refuses what excludes it.
func (f *filter) take(args []string) error {
	if f.everywhere && f.namespace != "" {
		return command.Usagef("--namespace and --all-namespaces exclude each other")
	}
	if len(args) == 0 {
		return nil
	}
	if f.service != "" && f.service != args[0] {
		return command.Usagef("argument %q and --service %s: name one Service", args[0], f.service)
	}
	if args[0] == "" {
		return command.Usagef("argument \"\": want the name of a Service, as web or prod/web")
	}
	f.service = args[0]
	return nil
}

// named is an error where a Service was asked for by its name, and the tables have none of that name. Tables that cannot be read are no reason.
func (f *filter) named(r *maps.Reader) error {
	if f.service == "" {
		return nil
	}
	for range r.FrontendsOf(func(p lb.PortName) bool { return f.keepsService(p.Service.String(), p.Port) }) {
		return nil
	}
	return fmt.Errorf("no Service matches %q%s: nearlb services lists those there are", f.service, f.within())
}

// within says which namespace is looked in.
func (f *filter) within() string {
	if f.namespace == "" {
		return ""
	}
	return " in namespace " + f.namespace
}
