// SPDX-License-Identifier: Apache-2.0

// Package command is what the commands of nearlb, and of its plugin for kubectl on any system, have in common: flags of several of them,
// exit statuses, formats of output, the environment.
package command

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/table"
)

// Prepare has the commands of a program's tree answer as all do: wrong flags are bad usage, help is 80 columns wide, and errors are Run's to print.
func Prepare(root *cobra.Command) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return UsageError{plainly(err)} })
	root.SetUsageFunc(func(c *cobra.Command) error { return writeUsage(c.OutOrStderr(), c) })
}

// Run runs a program's command tree with arguments, without the program's name, and returns the exit status. An error is one line on
// errOut. One of out is the command's, whether or not the command looks at it.
func Run(ctx context.Context, root *cobra.Command, args []string, in io.Reader, out, errOut io.Writer) int {
	root.SetArgs(args)
	root.SetIn(in)
	said := &written{Writer: out}
	root.SetOut(said)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = said.err
	}
	if err != nil {
		if text := err.Error(); text != "" {
			SayAside(errOut, table.OneLine(text))
		}
	}
	return ExitStatus(err)
}

// SayAside says on standard error what concerns the rows on standard output: on one line, but where a terminal is narrower.
func SayAside(errs io.Writer, text string) {
	table.WriteFolded(errs, table.TerminalWidth(errs), "nearlb: ", text)
}

// WarnTo writes warnings as the errors are written: one line each.
func WarnTo(w io.Writer) func(string) {
	return func(text string) { SayAside(w, "warning: "+table.OneLine(text)) }
}
