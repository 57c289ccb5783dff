// SPDX-License-Identifier: Apache-2.0

//go:build !image

package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/demo"
	"github.com/nearlb/nearlb/pkg/ui"

	"github.com/nearlb/nearlb/pkg/table"
)

// demoExample is the line of the examples of `nearlb --help`.
const demoExample = "  nearlb demo                              see it at work on this machine\n"

func demoCommand() *cobra.Command {
	var options demo.Options
	var page bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the main job on a small cluster inside this machine",
		Long: `Makes three nodes in two zones with pods, servers and clients, runs an agent
on each node, and shows how traffic follows the endpoints: about 40 seconds,
as root. Nothing leaves this machine, and Ctrl-C leaves nothing behind. Ends
with 0 when every step came out as it should.`,
		Example: "  nearlb demo\n  nearlb demo --hold    keep the cluster for playing with the other commands\n  nearlb demo --ui      look at it in a browser",
		Args:    command.NoArguments,
	}
	cmd.Flags().BoolVar(&options.Hold, "hold", false, "keep the cluster until Ctrl-C")
	cmd.Flags().BoolVar(&page, "ui", false, "serve nearlb ui's page of the three nodes on "+uiAddress+", and keep the cluster until Ctrl-C")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		options.Out = cmd.OutOrStdout()
		options.Width = table.TerminalWidth(options.Out)
		options.Interactive = options.Width > 0 && os.Getenv("TERM") != "dumb"
		options.Color = options.Interactive && os.Getenv("NO_COLOR") == ""
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		if page {
			if err := showDemo(&options); err != nil {
				return err
			}
		}
		return demo.Run(ctx, options)
	}
	return cmd
}

// showDemo has the page of the demo's nodes served as long as the demo goes on.
func showDemo(options *demo.Options) error {
	listener, err := listenLocally(uiAddress)
	if err != nil {
		return err
	}
	fmt.Fprintf(options.Out, "map: http://%s/\n", listener.Addr())
	options.Hold = true
	options.Show = func(ctx context.Context, places []demo.Node) error {
		var nodes uiNodes
		for _, place := range places {
			node := newUINode(agentFlags{pinFlags{place.PinPath}, place.LockDir}, false)
			node.enter = place.Enter
			nodes = append(nodes, node)
		}
		defer func() {
			for _, node := range nodes {
				node.close()
			}
		}()
		return ui.Serve(ctx, listener, ui.Handler(nodes), pageAnswer)
	}
	return nil
}
