// SPDX-License-Identifier: Apache-2.0

//go:build !image

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/bench"
	"github.com/nearlb/nearlb/pkg/command"

	"github.com/nearlb/nearlb/pkg/table"
)

func benchCommand() *cobra.Command {
	var options bench.Options
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what a packet costs in the programs on this machine",
		Long: `Runs the programs over made packets in the kernel and prints nanoseconds a
packet, path by path, beside what this machine asks for doing nothing, and
beside the kernel's own hashes as a flow table (kernel_hash: a look-up that
finds; kernel_lru: one that does not, and an insertion). Uses tables of its
own.`,
		Example: "  nearlb bench\n  nearlb bench --path tcp4/established --flows 1,100000\n  nearlb bench -o json > figures.json",
		Args:    command.NoArguments,
	}
	flags := cmd.Flags()
	flags.IntVar(&options.Runs, "runs", 20, "measurements of each path: the best one counts")
	flags.IntVar(&options.Packets, "packets", 200_000, "packets of one measurement")
	flags.IntSliceVar(&options.Flows, "flows", []int{1, 10_000, 100_000}, "`numbers` of established flows; of more than 131,072 over a larger table, with a quarter of the runs")
	flags.StringSliceVar(&options.Paths, "path", nil, "only paths whose name has this `part` in it (repeatable)")
	output := command.AddOutputFlag(cmd, command.FormatTable, command.FormatJSON, command.FormatYAML, command.FormatMarkdown)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if options.Runs < 1 || options.Packets < 1 {
			return command.Usagef("--runs %d, --packets %d: want 1 or more of each", options.Runs, options.Packets)
		}
		for _, flows := range options.Flows {
			if flows < 1 {
				return command.Usagef("--flows %d: want 1 or more", flows)
			}
		}
		options.Progress = progress(cmd.ErrOrStderr())
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		result, err := bench.Run(ctx, options)
		if errors.Is(err, context.Canceled) {
			return errors.New("bench: interrupted")
		}
		if err != nil {
			return err
		}
		if len(result.Paths) == 0 {
			return command.Usagef("--path %s: no path has that in its name", strings.Join(options.Paths, ","))
		}
		return writeBench(cmd.OutOrStdout(), output.Value, result)
	}
	return cmd
}

// progress shows on a terminal how far it is, and takes the line away at the end.
func progress(w io.Writer) func(done, total int) {
	if table.TerminalWidth(w) == 0 {
		return nil
	}
	return func(done, total int) {
		if done < total {
			fmt.Fprintf(w, "\rmeasured %d of %d times", done, total)
			return
		}
		fmt.Fprint(w, "\r\x1b[K")
	}
}

func writeBench(w io.Writer, format string, r bench.Result) error {
	switch format {
	case command.FormatJSON:
		return command.WriteJSON(w, r)
	case command.FormatYAML:
		return command.WriteYAML(w, r)
	case command.FormatMarkdown:
		return r.Markdown(w)
	}
	fmt.Fprintf(w, "Linux %s on %s, %d runs; nanoseconds a packet, net of the empty program\n", table.Printable(r.Kernel), table.Printable(r.CPU), r.Runs)
	fmt.Fprintf(w, "floor: empty program %.1f, kernel hash lookup %.1f, rewrite %.1f\n\n", r.Floor.Empty, r.Floor.HashLookupNet, r.Floor.RewriteNet)
	return table.WriteColumns(w, table.TerminalWidth(w), false, []table.Column[bench.Path]{
		{Heading: "PATH", Cell: func(p bench.Path) string { return p.Name }},
		{Heading: "FLOWS", Right: true, Cell: func(p bench.Path) string { return orNothing(p.Flows) }},
		{Heading: "NET", Right: true, Cell: func(p bench.Path) string { return nanoseconds(p.Net) }},
		{Heading: "MIN", Right: true, Cell: func(p bench.Path) string { return nanoseconds(p.Min) }},
		{Heading: "MEDIAN", Right: true, Cell: func(p bench.Path) string { return nanoseconds(p.Median) }},
		{Heading: "INSTRUCTIONS", Right: true, Cell: func(p bench.Path) string { return orNothing(int(p.Instructions)) }},
	}, r.Paths)
}

func nanoseconds(t float64) string { return strconv.FormatFloat(t, 'f', 1, 64) }
