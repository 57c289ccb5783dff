// SPDX-License-Identifier: Apache-2.0

// Package plan is `nearlb plan`: what a node would do with objects from files, and why, or what another set of objects would change. It runs
// wherever Go does, in nearlb and in the plugin for kubectl.
package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/lb"
	"github.com/nearlb/nearlb/pkg/precedence"
	"github.com/nearlb/nearlb/pkg/table"
	"github.com/nearlb/nearlb/pkg/watch"
)

// Main runs `nearlb plan` alone, as a program that has other commands would: args begin behind the word plan. It prints what nearlb prints,
// and returns the exit status.
func Main(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := &cobra.Command{Use: "nearlb"}
	command.Prepare(root)
	root.AddCommand(Command())
	return command.Run(ctx, root, append([]string{"plan"}, args...), in, out, errs)
}

// Command is the command, to be added to a root.
func Command() *cobra.Command {
	var objects command.ObjectFlags
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
	objects.Add(cmd.Flags())
	cmd.Flags().BoolVar(&strict, "strict", false, "end with 1 if there are problems; with --diff: new ones")
	cmd.Flags().BoolVar(&diff, "diff", false, "compare two files or directories, the former first, in the place of --filename")
	objects.AddOffNode(cmd)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		return command.FromEnvironment(cmd.Flags(), command.ReadFlags...)
	}
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatWide, command.FormatJSON, command.FormatYAML)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if !diff {
			return command.NoArguments(cmd, args)
		}
		if len(args) == 2 && args[0] == args[1] {
			return command.Usagef("--diff: %q is named twice: want what there was, and what there will be", args[0])
		}
		if len(args) != 2 || len(objects.Files) > 0 {
			return command.Usagef("--diff: want two files or directories, the former first, and no --filename")
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		if diff {
			before, after, err := readBoth(cmd, objects, args)
			if err != nil {
				return err
			}
			d := newDiff(before, after)
			err = writeAs(out, output.Value, d, func() error { return writeDiff(out, table.TerminalWidth(out), output.Value == command.FormatWide, d) })
			return errors.Join(err, refuseProblems(strict, d.Problems))
		}
		if len(objects.Files) == 0 {
			return command.Usagef("--filename is missing: name a file or directory of objects, or - for standard input")
		}
		doc, err := read(cmd, objects, command.WarnTo(cmd.ErrOrStderr()), objects.Files...)
		if err != nil {
			return err
		}
		err = writeAs(out, output.Value, doc, func() error { return write(out, table.TerminalWidth(out), output.Value == command.FormatWide, doc) })
		return errors.Join(err, refuseProblems(strict, doc.Problems))
	}
	return cmd
}

// readBoth reads what there was and what there will be. A warning of one of them names it, and one of both is said once.
func readBoth(cmd *cobra.Command, f command.ObjectFlags, files []string) (before, after Document, err error) {
	var of [2][]string // warnings
	defer func() {
		warn := command.WarnTo(cmd.ErrOrStderr())
		for i, texts := range of {
			for _, text := range texts {
				switch both := slices.Contains(of[1-i], text); {
				case !both:
					warn(files[i] + ": " + text)
				case i == 0:
					warn(text)
				}
			}
		}
	}()
	if before, err = read(cmd, f, func(text string) { of[0] = append(of[0], text) }, files[0]); err == nil {
		after, err = read(cmd, f, func(text string) { of[1] = append(of[1], text) }, files[1])
	}
	return before, after, err
}

// read decides about the objects of some files.
func read(cmd *cobra.Command, f command.ObjectFlags, warn func(string), files ...string) (Document, error) {
	f.Files = files
	source, err := f.Load(cmd.InOrStdin(), warn)
	if err != nil {
		return Document{}, err
	}
	decided := command.Decisions(source)
	problems := append(precedence.Problems(decided), source.Problems()...)
	return NewDocument(source.Node(), f.OffNode, withUnserved(decided, source), problems), nil
}

func writeAs(out io.Writer, format string, document any, table func() error) error {
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(out, document)
	case command.FormatYAML:
		return command.WriteYAML(out, document)
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
