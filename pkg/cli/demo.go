// SPDX-License-Identifier: Apache-2.0

//go:build !image

package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/demo"
)

// demoExample is the line of the examples of `nearlb --help`.
const demoExample = "  nearlb demo                              see it at work on this machine\n"

func demoCommand() *cobra.Command {
	var options demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on a small cluster inside this machine",
		Long: `Makes three nodes in two zones with pods, servers and clients, runs an agent
on each node, and shows how traffic follows the endpoints: about 40 seconds,
as root. Nothing leaves this machine, and Ctrl-C leaves nothing behind. Ends
with 0 when every step came out as it should.`,
		Example: "  nearlb demo\n  nearlb demo --hold    keep the cluster for playing with the other commands",
		Args:    noArguments,
	}
	cmd.Flags().BoolVar(&options.Hold, "hold", false, "keep the cluster until Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options.Out = cmd.OutOrStdout()
		options.Width = terminalWidth(options.Out)
		options.Interactive = options.Width > 0 && os.Getenv("TERM") != "dumb"
		options.Color = options.Interactive && os.Getenv("NO_COLOR") == ""
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		return demo.Run(ctx, options)
	}
	return cmd
}
