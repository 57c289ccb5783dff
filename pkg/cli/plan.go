// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/precedence"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/watch"
)

func planCommand() *cobra.Command {
	var objects objectFlags
	var strict, diff bool
	cmd := &cobra.Command{
		Use:   "plan -f FILE|DIR ... --node NAME",
		Short: "Say what a node would do with these objects, and why",
		Long: `Reads objects from files and prints every frontend with the backends it would
use on this node, every endpoint with the reason it is in or out, and what is
wrong with the objects. Needs neither a kernel nor a cluster.

With --diff it compares two files or directories: which frontends answer
differently, and which part of their new connections goes to other backends.`,
		Example: `  nearlb plan -f objects.yaml --node n1
  kubectl get svc,endpointslices,nodes -A -o yaml | nearlb plan -f - --node n1
  nearlb plan --diff before/ after/ --node n1`,
	}
	objects.add(cmd.Flags())
	cmd.Flags().BoolVar(&strict, "strict", false, "end with 1 if there are problems; with --diff: new ones")
	cmd.Flags().BoolVar(&diff, "diff", false, "compare two files or directories, the former first, in the place of --filename")
	objects.addOffNode(cmd)
	output := addOutputFlag(cmd, formatTable, formatWide, formatJSON, formatYAML)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !diff {
			return noArguments(cmd, args)
		}
		if len(args) != 2 || len(objects.files) > 0 || args[0] == args[1] {
			return usagef("--diff: want two files or directories, the former first, and no --filename")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		if diff {
			before, err := objects.plan(cmd, args[0])
			if err != nil {
				return err
			}
			after, err := objects.plan(cmd, args[1])
			if err != nil {
				return err
			}
			d := newPlanDiff(before, after)
			err = writeAs(out, output.value, d, func() error { return writePlanDiff(out, table.TerminalWidth(out), output.value == formatWide, d) })
			return errors.Join(err, refuseProblems(strict, d.Problems))
		}
		if len(objects.files) == 0 {
			return usagef("--filename is missing: name a file or directory of objects, or - for standard input")
		}
		doc, err := objects.plan(cmd, objects.files...)
		if err != nil {
			return err
		}
		err = writeAs(out, output.value, doc, func() error { return writePlan(out, table.TerminalWidth(out), output.value == formatWide, doc) })
		return errors.Join(err, refuseProblems(strict, doc.Problems))
	}
	return cmd
}

// plan decides about the objects of some files.
func (f objectFlags) plan(cmd *cobra.Command, files ...string) (planDocument, error) {
	f.files = files
	source, err := f.load(cmd.InOrStdin(), warnTo(cmd.ErrOrStderr()))
	if err != nil {
		return planDocument{}, err
	}
	decided := decisions(source)
	problems := append(precedence.Problems(decided), source.Problems()...)
	return newPlanDocument(source.Node(), f.offNode, withUnserved(decided, source), problems), nil
}

func writeAs(out io.Writer, format string, document any, table func() error) error {
	switch format {
	case formatJSON:
		return writeJSON(out, document)
	case formatYAML:
		return writeYAML(out, document)
	}
	return table()
}

// refuseProblems is the error of --strict.
func refuseProblems(strict bool, problems []lb.Problem) error {
	if !strict || len(problems) == 0 {
		return nil
	}
	first := problems[0]
	return fmt.Errorf("problems (--strict): %d; the first is in %s, %s: %s", len(problems), first.Object, first.Field, first.Message)
}

// withUnserved adds the endpoints of slices whose Service is not served, all by name of the Service.
func withUnserved(decided []lb.Decision, source watch.Loaded) []lb.Decision {
	all := append(slices.Clone(decided), source.Unserved()...)
	slices.SortFunc(all, func(a, b lb.Decision) int { return a.Service.Compare(b.Service) })
	return all
}
