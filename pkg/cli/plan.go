// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/watch"
)

func planCommand() *cobra.Command {
	var objects objectFlags
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR ... --node NAME",
		Short: "Say what a node would do with these objects, and why",
		Long: `Reads objects from files and prints every frontend with the backends it would
use on this node, every endpoint with the reason it is in or out, and what is
wrong with the objects. Needs neither a kernel nor a cluster.`,
		Example: `  nearlb plan -f objects.yaml --node n1
  kubectl get svc,endpointslices,nodes -A -o yaml | nearlb plan -f - --node n1`,
		Args: noArguments,
	}
	objects.add(cmd.Flags())
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if len(objects.files) == 0 {
			return usagef("--filename is missing: name a file or directory of objects, or - for standard input")
		}
		source, err := objects.load(cmd.InOrStdin(), warnTo(cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		decided := decisions(source)
		clashing, err := clashes(decided)
		if err != nil {
			return err
		}
		doc := newPlanDocument(source.Node(), withUnserved(decided, source), append(clashing, source.Problems()...))
		out := cmd.OutOrStdout()
		switch output.value {
		case formatJSON:
			return writeJSON(out, doc)
		case formatYAML:
			return writeYAML(out, doc)
		}
		return writePlan(out, terminalWidth(out), output.value == formatWide, doc)
	}
	return cmd
}

// withUnserved adds the endpoints of slices whose Service is not served, all by name of the Service.
func withUnserved(decided []lb.Decision, source watch.Loaded) []lb.Decision {
	all := append(slices.Clone(decided), source.Unserved()...)
	slices.SortFunc(all, func(a, b lb.Decision) int { return a.Service.Compare(b.Service) })
	return all
}
