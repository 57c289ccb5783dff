// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/kubeproxy"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/maps"
	"github.com/nearlb/nearlb/pkg/table"
)

// Whom `nearlb handover --to` gives new connections.
const (
	toNearlb    = "nearlb"
	toKubeProxy = "kube-proxy"
)

func handoverCommand() *cobra.Command {
	var pins pinFlags
	var again watchFlags
	var to, lockDir string
	var force, endUDP bool
	cmd := &cobra.Command{
		Use:   "handover",
		Short: "Hand connections over from kube-proxy, or back to it",
		Long: `Says who takes this node's new connections, whose connections are still open,
and what to do next. An open connection stays with whom it began with.

--to kube-proxy leaves new connections to kube-proxy, whose rules have to be
here for each family that is served, and goes on with nearlb's own until they
end; agents that start meanwhile keep to it. --to nearlb takes new connections
again. --end-udp ends UDP sockets of this node that are connected through
kube-proxy: their owners connect anew.`,
		Args: command.NoArguments,
		Example: `  nearlb handover --watch
  nearlb handover --to kube-proxy`,
	}
	pins.add(cmd.Flags())
	addLockDir(cmd.Flags(), &lockDir)
	cmd.Flags().StringVar(&to, "to", "", "who takes new connections: `nearlb` or kube-proxy")
	cmd.Flags().BoolVar(&force, "force", false, "with --to kube-proxy: also where its rules are not here")
	cmd.Flags().BoolVar(&endUDP, "end-udp", false, "end UDP sockets of this node that are connected through kube-proxy")
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML)
	again.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("to") {
			if err := turn(&pins, to, force, cmd.ErrOrStderr()); err != nil {
				return err
			}
		}
		if endUDP {
			if err := endSockets(&pins, cmd.ErrOrStderr()); err != nil {
				return err
			}
		}
		return again.run(cmd.Context(), cmd.OutOrStdout(), func(w io.Writer, _ int) error {
			state, err := readHandover(cmd.Context(), &pins, lockDir)
			if err != nil {
				return err
			}
			return writeHandover(w, output.Value, state)
		})
	}
	return cmd
}

// turn tells the programs who takes new connections.
func turn(pins *pinFlags, to string, force bool, out io.Writer) error {
	if to != toNearlb && to != toKubeProxy {
		return command.Usagef("--to %q: want %s or %s", to, toNearlb, toKubeProxy)
	}
	if to == toKubeProxy && !force {
		if err := checkKubeProxy(pins); err != nil {
			return err
		}
	}
	tables, err := bpf.OpenMaps(pins.pinPath, false)
	if err != nil {
		return err
	}
	if err := errors.Join(maps.Drain(tables, to == toKubeProxy), tables.Close()); err != nil || to == toNearlb {
		return err
	}
	if err := reservePorts(pins); err != nil { // new connections are kube-proxy's by now
		command.SayAside(out, table.OneLine(err.Error()))
	}
	return nil
}

// reservePorts keeps kube-proxy's masquerade off the ports that open connections of nearlb's have towards their backends: a new one with such a
// port would have no answers. There are no more of nearlb's from now on.
func reservePorts(pins *pinFlags) error {
	var pairs []kubeproxy.Pair
	err := pins.read(func(reader *maps.Reader) error {
		for f, err := range reader.Flows() {
			if err != nil {
				return err
			}
			if pair, has := portOf(&f); has {
				pairs = append(pairs, pair)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	kept, err := kubeproxy.Reserve(pairs)
	if err == nil && kept < len(pairs) {
		err = errors.New("connection tracking is full")
	}
	if err != nil {
		return fmt.Errorf("of %d ports of nearlb's connections kube-proxy's may take all but %d: %w", len(pairs), kept, err)
	}
	return nil
}

// portOf is how the backend sees a connection that goes on with a port of this node.
func portOf(f *maps.FlowRow) (p kubeproxy.Pair, has bool) {
	if !slices.Contains(f.Flags, "snat") || slices.Contains(f.Flags, "alias") || !maps.GoesOn(f.State) {
		return p, false
	}
	protocol, err := lb.ParseProtocol(f.Protocol)
	return kubeproxy.Pair{Protocol: uint8(protocol), Source: netip.AddrPortFrom(f.Source, f.SourcePort), Server: netip.AddrPortFrom(f.Backend, f.BackendPort)},
		err == nil && protocol != lb.SCTP
}

// checkKubeProxy is an error unless kube-proxy has rules for new connections to what nearlb serves.
func checkKubeProxy(pins *pinFlags) error {
	rules, err := kubeproxy.Look()
	if err != nil {
		return fmt.Errorf("look for kube-proxy's rules: %w (--force goes on without)", err)
	}
	if !rules.Any() && len(rules.Hidden) == 0 {
		return errors.New("--to kube-proxy: its rules are not here, so nobody would take new connections: start kube-proxy first, or add --force")
	}
	serving, err := rules.Serving()
	if err != nil {
		return fmt.Errorf("%w (--force goes on without)", err)
	}
	frontends := map[kubeproxy.Frontend]bool{}
	if err := pins.read(func(reader *maps.Reader) error { return readFrontends(reader, frontends) }); err != nil {
		return err
	}
	return nobodyTakes(serving.Takes, frontends)
}

// nobodyTakes says which new connections nobody would take. kube-proxy writes the rules of one family after those of the other, and a chain
// before its rules.
func nobodyTakes(takes func(kubeproxy.Frontend) bool, frontends map[kubeproxy.Frontend]bool) error {
	for f := range frontends {
		if !takes(f) {
			return fmt.Errorf("--to kube-proxy: it has no rules for %s %s here, so nobody would take new connections to it: wait for them, or add --force", f.Protocol, f.Address)
		}
	}
	return nil
}

func writeHandover(w io.Writer, format string, state handoverState) error {
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(w, state)
	case command.FormatYAML:
		return command.WriteYAML(w, state)
	}
	takes := "nearlb takes them"
	switch {
	case state.Draining:
		takes = "left to kube-proxy"
	case !state.Installed:
		takes = "kube-proxy's, if it runs: there are no tables of nearlb"
	}
	fmt.Fprintf(w, "new connections  %s\n", takes)
	fmt.Fprintf(w, "kube-proxy       %s\n", state.KubeProxy.text())
	for _, mark := range state.KubeProxy.Rules {
		fmt.Fprintf(w, "                 %s\n", mark)
	}
	fmt.Fprintf(w, "its connections  %s\n", state.KubeProxy.connectionsText())
	if state.Installed {
		fmt.Fprintf(w, "nearlb's         %s\n", state.Nearlb.text())
	}
	fmt.Fprintln(w)
	for _, step := range state.Next {
		writeStep(w, step)
	}
	return nil
}

// writeStep writes what to do, and below it the commands.
func writeStep(w io.Writer, step handoverStep) {
	const width = 72
	line := ""
	for word := range strings.FieldsSeq(step.Text) {
		if line != "" && len(line)+1+len(word) > width {
			fmt.Fprintln(w, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	fmt.Fprintln(w, line)
	for _, command := range step.Commands {
		fmt.Fprintf(w, "    %s\n", command)
	}
}
