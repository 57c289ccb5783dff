// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/command"
)

func readmitCommand() *cobra.Command {
	var pins pinFlags
	var lockDir string
	cmd := &cobra.Command{
		Use:   "readmit ADDRESS:PORT",
		Short: "Have new connections go to a backend again that they leave out",
		Long: `Ends the time for which new connections leave a backend out because it did not
answer (state "ejected" in nearlb backends). What is known against it is
forgotten. The agent does it, and tells so in nearlb changes.`,
		Example: "  nearlb backends readmit 10.244.2.9:8080",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return command.Usagef("want ADDRESS:PORT of one backend, as 10.244.2.9:8080")
			}
			return nil
		},
	}
	pins.add(cmd.Flags())
	addLockDir(cmd.Flags(), &lockDir)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		at, port, err := parseAddress(args[0])
		if err == nil && port == 0 {
			err = fmt.Errorf("%q: want a port as well, as 10.244.2.9:8080", args[0])
		}
		if err != nil {
			return command.Usagef("%v", err)
		}
		backend := netip.AddrPortFrom(at, port)
		n, err := agent.AskReadmit(cmd.Context(), lockDir, pins.pinPath, backend)
		if err != nil {
			return err
		}
		if n == 0 {
			return fmt.Errorf("readmit %s: no backend with this address and port is left out (nearlb backends lists them)", backend)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s gets new connections again.\n", backend)
		return err
	}
	return cmd
}
