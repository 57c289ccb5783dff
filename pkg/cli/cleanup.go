// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nearlb/nearlb/pkg/agent"
	"github.com/nearlb/nearlb/pkg/attach"
	"github.com/nearlb/nearlb/pkg/bpf"
	"github.com/nearlb/nearlb/pkg/command"
	"github.com/nearlb/nearlb/pkg/journal"
	"github.com/nearlb/nearlb/pkg/table"
)

// addLockDir adds the flag of the commands that ask for a running agent.
func addLockDir(flags *pflag.FlagSet, dir *string) {
	*dir = bpf.DefaultLockDir
	flags.Var((*directoryFlag)(dir), "lock-dir", "`directory` of the agent's lock and status file")
}

func cleanupCommand() *cobra.Command {
	var pins pinFlags
	var lockDir string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Take everything of nearlb out of the kernel",
		Long: `Detaches the programs from all devices and from the cgroup of the node's own
sockets, and removes the pinned tables. Connections to Services stop working;
others are not touched. Stop the agent first.`,
		Args: command.NoArguments,
	}
	pins.add(cmd.Flags())
	addLockDir(cmd.Flags(), &lockDir)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		removed, err := cleanup(pins.pinPath, lockDir)
		out := cmd.OutOrStdout()
		for _, line := range removed {
			fmt.Fprintf(out, "removed %s\n", table.Printable(line))
		}
		if err == nil && len(removed) == 0 {
			fmt.Fprintln(out, "Nothing to remove.")
		}
		return err
	}
	return cmd
}

// cleanup lists what it removed, whether it came to its end or not.
func cleanup(pinPath, lockDir string) (removed []string, err error) {
	lock, err := bpf.Lock(lockDir, pinPath)
	if errors.Is(err, bpf.ErrLocked) {
		return nil, fmt.Errorf("%w: stop it first", err)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, lock.Close())
		} else {
			err = lock.Remove()
		}
	}()
	programs, err := bpf.PinnedPrograms(pinPath)
	if err != nil {
		return nil, err
	}
	removed, err = attach.RemoveFilters(programs, bpf.QdiscDirectory(pinPath)) // before the pins, without which their programs lose their tail calls
	if err != nil {
		return removed, err
	}
	unpinned, err := bpf.Cleanup(pinPath)
	removed = append(removed, unpinned...)
	if err != nil {
		return removed, err
	}
	for _, file := range append(agent.StatusFiles(lockDir, pinPath), agent.Socket(lockDir, pinPath)) {
		switch err := os.Remove(file); {
		case err == nil:
			removed = append(removed, file)
		case !errors.Is(err, fs.ErrNotExist):
			return removed, fmt.Errorf("remove file of the agent: %w", err)
		}
	}
	left, err := journal.RemoveLog(agent.ChangesPath(lockDir, pinPath))
	if removed = append(removed, left...); err != nil {
		return removed, fmt.Errorf("remove file of the agent: %w", err)
	}
	return removed, nil
}
