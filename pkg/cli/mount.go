// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nearlb/nearlb/pkg/bpf"
)

func mountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "mount",
		Short: "Mount a bpffs on /sys/fs/bpf where there is none",
		Long: `Does once, with privilege, what an agent without it cannot: the DaemonSet's
init container.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			mounted, err := bpf.Mount()
			if err == nil && mounted {
				fmt.Fprintln(cmd.OutOrStdout(), "mounted a bpffs on /sys/fs/bpf")
			}
			return err
		},
	}
}
