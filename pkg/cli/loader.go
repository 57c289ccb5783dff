// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
)

// loaderCommand is the command that `nearlb agent` runs to have programs loaded after it gave its privileges away.
const loaderCommand = "loader"

func loaderCmd() *cobra.Command {
	return &cobra.Command{
		Use:    loaderCommand,
		Short:  "Load programs for the agent that runs this",
		Hidden: true,
		Args:   command.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return agent.ServeLoader(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
}
